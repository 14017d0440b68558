# SPDX-License-Identifier: Apache-2.0
"""The gRPC health service, under the names that gateways and probes ask for."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from epp.extproc.wire import SERVICE

LIVENESS = "liveness"
READINESS = "readiness"
PROBED_FOR_BOTH = "inference-extension"
"""The name that llm-d's chart gives to the liveness probe and the readiness probe of a single replica."""
_READY_NAMES = ("", READINESS, SERVICE)


class Health(health_pb2_grpc.HealthServicer):
    """`liveness` serves as long as the process does; the other names from readiness to draining.

    `inference-extension` goes on serving while the picker drains: it answers a liveness probe too, and a failed one
    restarts a container that still has streams. Before readiness it does not serve, as it answers a readiness probe
    too: a picker without a pool must get no requests, and loses nothing in a restart.

    With leader election, a follower that could serve stands by: it does not serve under the names of readiness, and
    serves as `inference-extension`, since a failed liveness probe would restart it for no fault of its own. Of several
    replicas, llm-d's chart probes `liveness` and `readiness`.

    All of them go on serving while no endpoint can be reached: a gateway that saw NOT_SERVING would answer a bare 503
    without the reason, or with FailOpen pick by itself, past all filters. `/healthz` says so instead.

    An unknown name is NOT_FOUND for `Check`, and SERVICE_UNKNOWN for `Watch`, as the protocol has it.
    """

    def __init__(self) -> None:
        waiting = dict.fromkeys((PROBED_FOR_BOTH, *_READY_NAMES), _status(ready=False))
        self._status = {LIVENESS: HealthCheckResponse.SERVING, **waiting}
        self._open = True
        self._changed = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> None:
        """Answer health checks on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def set_ready(self, *, ready: bool) -> None:
        """Set whether new requests are served, and notify watchers."""
        self._status.update(dict.fromkeys(_READY_NAMES, _status(ready=ready)))
        if ready:
            self._status[PROBED_FOR_BOTH] = HealthCheckResponse.SERVING
        self._wake()

    def stand_by(self) -> None:
        """Report that new requests could be served, and are to go to another replica."""
        self._status[PROBED_FOR_BOTH] = HealthCheckResponse.SERVING
        self.set_ready(ready=False)

    def close(self) -> None:
        """End every watch: the server closes."""
        self._open = False
        self._wake()

    async def Check(  # noqa: N802  the protocol's name
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]
    ) -> HealthCheckResponse:
        """Answer for one name."""
        status = self._status.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}: {sorted(self._status)}")
        return HealthCheckResponse(status=status)

    async def List(self, _request: object, _context: object) -> object:  # noqa: N802  the protocol's name
        """Answer for all names at once."""
        statuses = {name: HealthCheckResponse(status=status) for name, status in self._status.items()}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # younger than the stubs

    async def Watch(  # noqa: N802  the protocol's name
        self, request: HealthCheckRequest, _context: object
    ) -> AsyncIterator[HealthCheckResponse]:
        """Say how it is, and again whenever that changes."""
        told = None
        while self._open:
            changed = self._changed
            status = self._status.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
            if status != told:
                yield HealthCheckResponse(status=status)
                told = status
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _status(*, ready: bool) -> int:
    return HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
