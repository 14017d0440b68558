# SPDX-License-Identifier: Apache-2.0
"""A running cluster: an API server, its etcd, and what tests ask of both."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import yaml

from tests.support.kube.apiserver import Access, ApiServer
from tests.support.kube.client import Client, Manifest, RefusedError, client_of
from tests.support.kube.etcd import Etcd
from tests.support.kube.kubeconfig import write_kubeconfig
from tests.support.ports import reserved_ports
from tests.support.waiting import until

CRDS = Path(__file__).parents[2] / "kube" / "crds"


class Cluster:
    """An API server and its etcd."""

    def __init__(self, programs: Path, data: Path, ports: Sequence[int], *flags: str) -> None:
        client_port, peer_port, port = ports
        self.etcd = Etcd(programs / "etcd", data, client_port=client_port, peer_port=peer_port)
        self.server = ApiServer(programs / "kube-apiserver", data, self.etcd, port, *flags)

    @property
    def access(self) -> Access:
        return self.server.access

    @property
    def admin_token(self) -> str:
        return self.server.admin_token

    def client(self, token: str = "") -> AbstractAsyncContextManager[Client]:
        """Open a client of the user with that token; of the administrator without one."""
        return client_of(self.access, token or self.admin_token)

    def kubeconfig(self, path: Path, *, namespace: str = "default") -> Path:
        """Write a kubeconfig of the administrator."""
        return write_kubeconfig(path, self.access, token=self.admin_token, namespace=namespace)

    async def restart(self) -> None:
        """Kill the API server and start it again: same port, same objects."""
        self.server.kill()
        await self.server.start()

    async def expire_history(self) -> int:
        """Restart the API server without its history: a watch from any earlier resourceVersion answers 410.

        Returns the oldest revision that is still known.
        """
        self.server.kill()
        revision = await self.etcd.compact()
        await self.server.start()
        return revision

    async def install(self, *names: str) -> None:
        """Install the definitions whose file names begin so, all without a name, and wait until they are served."""
        definitions = [definition for definition in definitions_in(CRDS) if _is_named(definition, names)]
        assert definitions, f"no file in {CRDS} begins with one of {names}"
        await self.define(*definitions)

    async def define(self, *definitions: Manifest) -> None:
        """Install definitions, and wait until they are served."""
        async with self.client() as admin:
            await asyncio.gather(*(admin.apply(definition) for definition in definitions))
            await asyncio.gather(*(_served(admin, definition) for definition in definitions))

    async def uninstall(self, *names: str) -> None:
        """Remove definitions with all their objects, and wait until they are gone."""
        async with self.client() as admin:
            for definition in definitions_in(CRDS):
                if _is_named(definition, names):
                    await admin.delete(definition)
                    await _gone(admin, definition)


@asynccontextmanager
async def running(programs: Path, data: Path, *flags: str) -> AsyncIterator[Cluster]:
    """Run a cluster without definitions of custom resources."""
    with reserved_ports(3) as ports:
        cluster = Cluster(programs, data, ports, *flags)
        try:
            await cluster.etcd.start()
            await cluster.server.start()
            yield cluster
        finally:  # nothing in it outlives the test: no need for a graceful end
            cluster.server.kill()
            cluster.etcd.process.kill()


def definitions_in(directory: Path) -> list[Manifest]:
    """Return the custom resource definitions of a directory."""
    return [yaml.safe_load(path.read_text()) for path in sorted(directory.glob("*.yaml"))]


def _is_named(definition: Manifest, names: tuple[str, ...]) -> bool:
    return not names or definition["metadata"]["name"].startswith(names)


async def _served(admin: Client, definition: Manifest) -> None:
    group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]

    async def listable() -> bool:
        try:
            for version in (each for each in definition["spec"]["versions"] if each["served"]):
                prefix = f"/apis/{group}/{version['name']}"
                offered = (await admin.request("GET", prefix))["resources"]
                await admin.request("GET", f"{prefix}/{plural}")
                if not any(resource["name"] == plural for resource in offered):
                    return False
        except RefusedError as error:
            if error.status in {404, 429, 503}:  # not yet, or its cache is being filled
                return False
            raise
        return True

    await until(listable, f"{plural} of {group} are served", seconds=60)


async def _gone(admin: Client, definition: Manifest) -> None:
    async def absent() -> bool:
        try:
            await admin.get(definition)
        except RefusedError as error:
            return error.status == 404
        return False

    await until(absent, f"{definition['metadata']['name']} is gone", seconds=60)
