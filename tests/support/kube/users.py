# SPDX-License-Identifier: Apache-2.0
"""A user with the rights of given roles and nothing more: a service account, as the chart makes one."""

import secrets
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from tests.support.kube.apiserver import Access
from tests.support.kube.client import Client, Manifest, RefusedError, client_of
from tests.support.kube.kubeconfig import write_kubeconfig, write_mount
from tests.support.kube.manifests import RBAC, manifest
from tests.support.waiting import until

_TOKEN_SECONDS = 3600
_REVOCATION_SECONDS = 60.0
"""The API server remembers for 10 s that a token is good."""

_READ = {"verbs": ["get", "list", "watch"]}
_POLICY_GROUPS = ["llm-d.ai", "inference.networking.x-k8s.io"]
_RULES = [
    {"apiGroups": [""], "resources": ["pods"], **_READ},
    {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], **_READ},
    {"apiGroups": _POLICY_GROUPS, "resources": ["inferenceobjectives", "inferencemodelrewrites"], **_READ},
]
PICKER_ROLE: Manifest = manifest(RBAC, "Role", "picker", rules=_RULES)
"""Enough for the main job of a picker."""


class User:
    """A service account and its present token."""

    def __init__(self, admin: Client, access: Access, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.token = ""
        self._admin = admin
        self._access = access
        self._secrets: dict[str, Manifest] = {}

    @property
    def full_name(self) -> str:
        """Its name in audit logs and role bindings."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def kubeconfig(self, path: Path, *, token_file: Path | None = None) -> Path:
        """Write a kubeconfig with the present token, or with the name of a file that has it."""
        namespace = self.namespace
        return write_kubeconfig(path, self._access, token=self.token, token_file=token_file, namespace=namespace)

    def mount(self, directory: Path) -> dict[str, str]:
        """Write the service account's directory with the present token; return the environment of its pod."""
        return write_mount(directory, self._access, token=self.token, namespace=self.namespace)

    async def renew(self) -> str:
        """Ask for a new token; return the old one, which stays good until `revoke`."""
        old = self.token
        secret = manifest("v1", "Secret", f"{self.name}-{secrets.token_hex(4)}", self.namespace)
        secret = await self._admin.create(secret)
        bound = {"apiVersion": "v1", "kind": "Secret", **{key: secret["metadata"][key] for key in ("name", "uid")}}
        answer = await self._admin.request(
            "POST",
            f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}/token",
            {"spec": {"expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound}},
        )
        self.token = answer["status"]["token"]
        self._secrets[self.token] = secret
        return old

    async def revoke(self, token: str) -> None:
        """Delete the secret that a token is bound to, and wait until the API server answers the token with 401."""
        await self._admin.delete(self._secrets.pop(token))

        async def refused() -> bool:
            async with client_of(self._access, token) as client:
                try:
                    await client.request("GET", "/api/v1")
                except RefusedError as error:
                    return error.status == 401
            return False

        await until(refused, f"an old token of {self.full_name} is refused", seconds=_REVOCATION_SECONDS)

    async def wait_for(self, role: Manifest) -> None:
        """Wait until the API server allows all that a role does."""
        for verb, group, resource, name in _acts(role):
            allowed = partial(self.may, verb, group, resource, name=name)
            await until(allowed, f"{self.full_name} may {verb} {resource}", seconds=60)

    async def wait_until_not(self, role: Manifest) -> None:
        """Wait until the API server allows nothing that a role does."""
        for verb, group, resource, name in _acts(role):

            async def denied(verb: str = verb, group: str = group, resource: str = resource, name: str = name) -> bool:
                return not await self.may(verb, group, resource, name=name)

            await until(denied, f"{self.full_name} may not {verb} {resource}", seconds=60)

    async def may(self, verb: str, group: str, resource: str, *, name: str = "", namespace: str | None = None) -> bool:
        """Ask the API server whether the user may do so, in its own namespace where none is given."""
        place = self.namespace if namespace is None else namespace
        resource, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]
        asked = {"user": self.full_name, "groups": groups, "resourceAttributes": {**attributes, "namespace": place}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked}
        answer = await self._admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        allowed: bool = answer["status"]["allowed"]
        return allowed


def _acts(role: Manifest) -> Iterator[tuple[str, str, str, str]]:
    """Yield verb, group, resource and name of all that a role allows; a rule for URLs has none."""
    for rule in role["rules"]:
        groups, resources, names = rule.get("apiGroups", ()), rule.get("resources", ()), rule.get("resourceNames", [""])
        yield from product(rule["verbs"], groups, resources, names)
