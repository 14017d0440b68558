# SPDX-License-Identifier: Apache-2.0
"""The gRPC health service on a server of grpcio."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from epp.extproc.health import Health


class HealthServicer(health_pb2_grpc.HealthServicer):
    """An unknown name is NOT_FOUND for `Check`, and SERVICE_UNKNOWN for `Watch`, as the protocol has it."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def register(self, server: grpc.aio.Server) -> None:
        """Answer health checks on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(  # noqa: N802  the protocol's name
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]
    ) -> HealthCheckResponse:
        """Answer for one name."""
        status = self._health.statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, self._health.unknown(request.service))
        return HealthCheckResponse(status=status)

    async def List(self, _request: object, _context: object) -> object:  # noqa: N802  the protocol's name
        """Answer for all names at once."""
        statuses = {name: HealthCheckResponse(status=status) for name, status in self._health.statuses.items()}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # younger than the stubs

    async def Watch(  # noqa: N802  the protocol's name
        self, request: HealthCheckRequest, _context: object
    ) -> AsyncIterator[HealthCheckResponse]:
        """Say how it is, and again whenever that changes."""
        changed = asyncio.Event()
        unwatch = self._health.watch(changed.set)
        told = None
        try:
            while self._health.open:
                changed.clear()
                status = self._health.statuses.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
                if status != told:
                    yield HealthCheckResponse(status=status)
                    told = status
                await changed.wait()
        finally:
            unwatch()
