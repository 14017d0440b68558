# SPDX-License-Identifier: Apache-2.0
"""Replicas of a picker as processes of their own, with the rights of leader election and nothing more."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.wire import SERVICE
from tests.support.commands import command
from tests.support.kube.client import Manifest
from tests.support.kube.users import PICKER_ROLE
from tests.support.ports import reserved_ports
from tests.support.serving import PLAIN, Served
from tests.support.waiting import until

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
ELECTION = "--ha-enable-leader-election"
PATIENCE_SECONDS = 90.0
"""More than a takeover takes, of which the lease has 15 s."""

LEASES: Manifest = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
EVENTS: Manifest = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}


def role(*rules: Manifest) -> Manifest:
    """Return the Role of a picker with more rules."""
    return {**PICKER_ROLE, "rules": [*PICKER_ROLE["rules"], *rules]}


class Replica:
    """A replica, and what probes, gateways and operators see of it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.command = served.command

    async def statuses(self) -> Mapping[str, int]:
        """Return the answers to health checks at one moment, by service name."""
        async with self.served.health() as channel:
            listed = await HealthStub(channel).List(HealthListRequest())
            return {name: answer.status for name, answer in listed.statuses.items()}

    async def ready(self) -> bool:
        """Whether gateways send it requests."""
        try:
            statuses = await self.statuses()
        except grpc.aio.AioRpcError:
            return False  # it has ended
        asked = {statuses[name] for name in ("", SERVICE, "readiness")}
        assert len(asked) == 1, statuses
        assert statuses["liveness"] == statuses["inference-extension"] == SERVING
        return asked == {SERVING}

    async def page(self) -> tuple[int, dict]:
        """Return the status and the content of `/healthz`."""
        return await self.served.health_page()

    async def election(self) -> dict:
        """Return what `/healthz` says of the election."""
        _, page = await self.page()
        return page["kubernetes"]["election"]

    def events(self, name: str) -> int:
        """Return how many log lines there are of an event."""
        return sum(f'"msg":"{name}"' in line for line in self.command.err)


@asynccontextmanager
async def replica(kubeconfig: Path, namespace: str, *flags: str, **environment: str) -> AsyncIterator[Replica]:
    """Run a replica of the picker of the pool named `pool`, and wait until it stands by or is ready."""
    names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
    pool = ("--pool-name=pool", f"--pool-namespace={namespace}", "--metrics-endpoint-auth=false")
    async with AsyncExitStack() as stack:
        ports = stack.enter_context(reserved_ports(3))
        where = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
        serve = command("serve", PLAIN, *pool, *where, *flags, KUBECONFIG=str(kubeconfig), **environment)
        process = await stack.enter_async_context(serve)
        await process.says('"msg":"standing by"' if ELECTION in flags else '"msg":"ready"')
        yield Replica(Served(process, *ports))


async def leader_of(*replicas: Replica) -> Replica:
    """Wait until exactly one of them is ready, and return it."""
    found: list[Replica] = []

    async def one() -> bool:
        found[:] = [each for each in replicas if await each.ready()]
        return len(found) == 1

    await until(one, "one replica is ready", seconds=PATIENCE_SECONDS)
    return found[0]
