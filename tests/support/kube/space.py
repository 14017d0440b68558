# SPDX-License-Identifier: Apache-2.0
"""A namespace of a test, as its administrator sees it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.kube import manifests as write
from tests.support.kube.client import Client, Manifest, RefusedError
from tests.support.kube.running import Cluster
from tests.support.kube.users import User

_AT_ONCE = 24
"""Requests under way when many pods are made."""


class Space:
    """A namespace: objects without a namespace of their own are put into it."""

    def __init__(self, cluster: Cluster, admin: Client, namespace: str) -> None:
        self.cluster = cluster
        self.admin = admin
        self.namespace = namespace
        self._cluster_wide: list[Manifest] = []

    def __str__(self) -> str:
        return self.namespace

    async def apply(self, manifest: Manifest) -> Manifest:
        """Create or change an object, its status included. One of cluster scope is deleted when the test ends."""
        resource = await self.admin.resource(manifest)
        if resource.namespaced:
            metadata = {"namespace": self.namespace, **manifest["metadata"]}
            manifest = {**manifest, "metadata": metadata}
        else:
            self._cluster_wide.append(manifest)
        applied = await self.admin.apply(manifest)
        if "status" in manifest:
            return await self.admin.status(manifest, manifest["status"])
        return applied

    async def delete(self, manifest: Manifest) -> None:
        """Delete it at once; no grace period."""
        await self.admin.delete(manifest)

    async def pod(self, name: str, ip: str, *, ready: bool = True, **content: Any) -> Manifest:
        """Create a running pod; `content` is that of `manifests.pod`."""
        created = await self.admin.create(write.pod(name, namespace=self.namespace, **content))
        return await self.admin.replace({**created, "status": write.pod_status(ip, ready=ready)}, "status")

    async def pods(self, ips: Sequence[str], *, prefix: str = "pod", **content: Any) -> list[Manifest]:
        """Create a running pod for each address: `pod-0`, `pod-1`, and so on."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(index: int, ip: str) -> Manifest:
            async with limit:
                return await self.pod(f"{prefix}-{index}", ip, **content)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index, ip)) for index, ip in enumerate(ips)]
        return [task.result() for task in tasks]

    async def ready(self, pod: Manifest, *, ready: bool = True) -> Manifest:
        """Set the Ready condition of a pod."""
        return await self.admin.status(pod, write.pod_status(pod["status"]["podIP"], ready=ready))

    async def terminate(self, pod: Manifest, *, grace_seconds: int = 3600) -> Manifest:
        """Mark a pod as terminating; it stays until `delete`, since no kubelet ends it."""
        await self.admin.delete(pod, grace_seconds=grace_seconds)
        return await self.admin.get(pod)

    async def label(self, manifest: Manifest, **labels: str | None) -> Manifest:
        """Change labels; None removes one. `**{"a/b": "c"}` writes a label that is no Python name."""
        return await self.admin.patch(manifest, {"metadata": {"labels": labels}})

    async def annotate(self, manifest: Manifest, **annotations: str | None) -> Manifest:
        """Change annotations, as `label` does."""
        return await self.admin.patch(manifest, {"metadata": {"annotations": annotations}})

    async def node(
        self, name: str, *, labels: Mapping[str, str] | None = None, boot_id: str = "", **content: Any
    ) -> Manifest:
        """Create a node."""
        manifest = write.node(name, labels=labels, **content)
        return await self.apply({**manifest, "status": {"nodeInfo": write.node_info(boot_id)}} if boot_id else manifest)

    async def pool(self, name: str = "pool", **content: Any) -> Manifest:
        """Create or replace an InferencePool; `content` is that of `manifests.pool`."""
        return await self.apply(write.pool(name, namespace=self.namespace, **content))

    async def user(self, name: str, *roles: Manifest) -> User:
        """Return a service account of the namespace with these roles and no others; an existing one keeps its own."""
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        await self.apply(account)
        user = User(self.admin, self.cluster.access, self.namespace, name)
        for role in roles:
            await self.grant(user, role)
        await user.renew()
        return user

    async def grant(self, user: User, role: Manifest) -> Manifest:
        """Bind a Role, or a ClusterRole in all namespaces, and wait until it has effect; return the binding."""
        name = role["metadata"]["name"]
        if role["kind"] == "ClusterRole":
            name = f"{self.namespace}-{name}"  # others may have one of the same name
        await self.apply({**role, "metadata": {"name": name}})
        binding = await self.apply(write.binding(role["kind"], name, account=user.name, namespace=self.namespace))
        await user.wait_for(role)
        return binding

    async def clean(self) -> None:
        """Delete all objects of the namespace, and those of cluster scope that were made through it.

        Pickers of other tests read some kinds in all namespaces.
        """
        await self.admin.empty(self.namespace)
        for manifest in self._cluster_wide:
            with contextlib.suppress(RefusedError):  # gone already, or its kind is
                await self.admin.delete(manifest)


@asynccontextmanager
async def space_in(cluster: Cluster) -> AsyncIterator[Space]:
    """Open a new namespace in the cluster."""
    namespace = f"test-{secrets.token_hex(4)}"
    async with cluster.client() as admin:
        await admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        space = Space(cluster, admin, namespace)
        yield space
        if cluster.server.process.running:
            await space.clean()
