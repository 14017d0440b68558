"""The gRPC health service, under the names that gateways ask for."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from epp.extproc.wire import SERVICE

LIVENESS = "liveness"
READINESS = "readiness"
_READY_NAMES = ("", READINESS, SERVICE)


class Health:
    """`liveness` serves from the start; everything else once there is a pool to pick from, until draining."""

    def __init__(self) -> None:
        self._servicer = health_aio.HealthServicer()

    def register(self, server: grpc.aio.Server) -> None:
        """Answer health checks on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Be alive, not yet ready."""
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)

    async def set_ready(self, *, ready: bool) -> None:
        """Say whether new requests are welcome."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in _READY_NAMES:
            await self._servicer.set(name, status)
