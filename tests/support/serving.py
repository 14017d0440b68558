# SPDX-License-Identifier: Apache-2.0
"""A picker as its own process, and the gateway's part in an exchange with it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import grpc
from prometheus_client.parser import text_string_to_metric_families

from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest, ProcessingResponse
from epp.lab.sim.server import RunningSim
from tests.support.commands import Command, command
from tests.support.exchanges import (
    BODY,
    headers_set,
    in_modes,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.support.http2 import http2_bytes as h2

PLAIN, SECURE = "--secure-serving=false", "--secure-serving=true"
ANY_PORT = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
APART = (("grpc.use_local_subchannel_pool", 1),)
"""Channel options for a connection of one's own."""
Exchange = grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]


@dataclass
class Served:
    command: Command
    grpc_port: int
    health_port: int
    metrics_port: int
    admin: str = field(default="", kw_only=True)
    """`host:port` of the admin port, if there is one."""

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}", options=APART)

    def trusting(self, certificate: bytes) -> grpc.aio.Channel:
        return trusting(self.grpc_port, certificate)

    def health(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.health_port}", options=APART)

    async def metrics(self) -> dict[str, dict[frozenset[str], float]]:
        """Name of each sample to its labels and values."""
        return await metrics_on(self.metrics_port)

    async def health_page(self) -> tuple[int, dict]:
        """Status and fields of `/healthz`."""
        return await health_on(self.metrics_port)


def trusting(port: int, certificate: bytes) -> grpc.aio.Channel:
    """Return a channel over TLS, for the server with that certificate."""
    return grpc.aio.secure_channel(
        f"127.0.0.1:{port}",
        grpc.ssl_channel_credentials(certificate),
        options=[("grpc.ssl_target_name_override", "localhost"), *APART],
    )


@contextlib.asynccontextmanager
async def serving(sim: RunningSim | None, *flags: str, ulimit: str = "") -> AsyncIterator[Served]:
    """Run a picker for that one server; without one, for the endpoints that the flags name."""
    pool = [] if sim is None else [f"--endpoints=only={sim.address}"]
    async with command("serve", *pool, *ANY_PORT, *flags, ulimit=ulimit) as process:
        yield await served_by(process)


async def served_by(process: Command) -> Served:
    """Wait until a picker is ready, and take its ports from the line that says so."""
    line = await process.ready()
    ports = (int(line[name].rpartition(":")[2]) for name in ("ext_proc", "health", "metrics"))
    return Served(process, *ports, admin=line.get("admin", ""))


async def metrics_on(port: int) -> dict[str, dict[frozenset[str], float]]:
    """Name of each sample to its labels and values."""
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as page:
        return _samples(await page.text())


async def health_on(port: int) -> tuple[int, dict]:
    """Status and fields of `/healthz`."""
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/healthz") as page:
        return page.status, await page.json()


def first_message(**headers: str) -> ProcessingRequest:
    """Request headers, as a gateway sends them that streams both bodies in full duplex."""
    return in_modes(request_headers(**headers), "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED")


PATH = f"/{SERVICE}/{METHOD}"
REQUEST = h2.grpc_message(first_message().SerializeToString()) + h2.grpc_message(
    request_body(BODY, end=True).SerializeToString()
)
"""A whole request in full duplex, as the bytes of a stream."""


def exchange(channel: grpc.aio.Channel) -> Exchange:
    return channel.stream_stream(
        PATH,
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )()


async def request(channel: grpc.aio.Channel, *pieces: bytes, end: bool = True, **headers: str) -> Exchange:
    """Send headers and a body in these pieces, the last of which ends it unless `end` is False."""
    call = exchange(channel)
    await call.write(first_message(**headers))
    for number, piece in enumerate(pieces, 1):
        await call.write(request_body(piece, end=end and number == len(pieces)))
    return call


async def destination_of(channel: grpc.aio.Channel) -> str:
    """Send one request as a gateway in full-duplex mode does, and take its answer through; return where it went."""
    call = exchange(channel)
    destination = await ask(call)
    await answer(call)
    return destination


async def ask(call: Exchange) -> str:
    """Send a request in two pieces; return where it is sent."""
    await call.write(first_message())
    await call.write(request_body(BODY[:20], end=False))
    await call.write(request_body(BODY[20:], end=True))
    routed = await call.read()
    piece = (await call.read()).request_body.response.body_mutation.streamed_response
    assert piece.body == BODY
    assert piece.end_of_stream
    return headers_set(routed)["x-gateway-destination-endpoint"]


async def answer(call: Exchange) -> None:
    await call.write(response_headers())
    assert (await call.read()).HasField("response_headers")
    await call.write(response_body(b"data: 1", end=True))
    piece = (await call.read()).response_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (b"data: 1", True)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


def _samples(page: str) -> dict[str, dict[frozenset[str], float]]:
    found: dict[str, dict[frozenset[str], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = frozenset(f"{name}={value}" for name, value in sample.labels.items())
            found.setdefault(sample.name, {})[labels] = sample.value
    return found
