# SPDX-License-Identifier: Apache-2.0
"""Probes of a picker, as a kubelet sends them."""

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub


async def is_serving(port: int, service: str = "readiness") -> bool:
    """Return whether a probe succeeds; it does not where nobody listens."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = await HealthStub(channel).Check(HealthCheckRequest(service=service))
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == HealthCheckResponse.SERVING)
