"""`epp serve` from outside: ext_proc, health, metrics, TLS, and a gentle end."""

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
import pytest_asyncio
from bench import BODY, request_body, request_headers, response_body, response_headers
from commands import Command, command, free_ports, outcome
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client.parser import text_string_to_metric_families
from world import FAST

from epp.extproc.wire import METHOD, SERVICE, ProcessingRequest, ProcessingResponse
from epp.sim import RunningSim, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
PLAIN = "--secure-serving=false"


@dataclass
class Served:
    command: Command
    grpc_port: int
    health_port: int
    metrics_port: int

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}")

    def health(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.health_port}")


@contextlib.asynccontextmanager
async def serving(sim: RunningSim, *flags: str) -> AsyncIterator[Served]:
    ports = free_ports(3)
    names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
    where = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
    async with command("serve", f"--endpoints=only={sim.address}", *where, *flags) as process:
        await process.says('"event":"ready"')
        yield Served(process, *ports)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sim() -> AsyncIterator[RunningSim]:
    async with running(FAST) as sim:
        yield sim


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(sim) -> AsyncIterator[Served]:
    async with serving(sim, PLAIN, "--refresh-prometheus-metrics-interval=20ms") as served:
        yield served


def exchange(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]:
    return channel.stream_stream(
        f"/{SERVICE}/{METHOD}",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )()


async def destination_of(channel: grpc.aio.Channel) -> str:
    """Send one request as a gateway in full-duplex mode does, and take its answer through; return where it went."""
    call = exchange(channel)
    destination = await ask(call)
    await answer(call)
    return destination


async def ask(call: grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]) -> str:
    await call.write(request_headers())
    await call.write(request_body(BODY[:20], end=False))
    await call.write(request_body(BODY[20:], end=True))
    routed = await call.read()
    (header,) = routed.request_headers.response.header_mutation.set_headers
    assert header.header.key == "x-gateway-destination-endpoint"
    piece = (await call.read()).request_body.response.body_mutation.streamed_response
    assert piece.body == BODY
    assert piece.end_of_stream
    return header.header.raw_value.decode()


async def answer(call: grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]) -> None:
    await call.write(response_headers())
    assert (await call.read()).HasField("response_headers")
    await call.write(response_body(b"data: 1", end=True))
    piece = (await call.read()).response_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (b"data: 1", True)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_request_goes_to_the_endpoint_and_its_body_comes_back(served, sim):
    async with served.channel() as channel:
        assert await destination_of(channel) == sim.address


async def test_health_answers_under_every_name_that_gateways_ask_for(served):
    async with served.health() as channel:
        health = HealthStub(channel)
        for name in ("liveness", "readiness", "", SERVICE):
            assert (await health.Check(HealthCheckRequest(service=name))).status == SERVING, name
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health.Check(HealthCheckRequest(service="nonsense"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_is_not_on_the_main_port_unless_asked_for(served):
    async with served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await HealthStub(channel).Check(HealthCheckRequest(service="readiness"))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metrics_page_counts_requests_and_shows_the_pool(served):
    async with served.channel() as channel:
        await destination_of(channel)
    pool = {"ready_endpoints", "average_queue_size", "average_running_requests", "average_kv_cache_utilization"}
    async with aiohttp.ClientSession() as http, asyncio.timeout(20):
        shown: dict[str, dict[frozenset[str], float]] = {}
        while "llm_d_epp_per_endpoint_queue_size" not in shown:  # it follows the endpoint's first report
            async with http.get(f"http://127.0.0.1:{served.metrics_port}/metrics") as page:
                shown = samples(await page.text())
    ((labels, requests),) = shown["llm_d_epp_request_total"].items()
    assert labels == {"model_name=m", "target_model_name=m", "fairness_id=default-flow", "priority=0"}
    assert requests >= 1
    assert shown["llm_d_epp_request_duration_seconds_count"] == {labels: requests}
    assert shown["llm_d_epp_request_ttft_seconds_count"][labels | {"streaming=false"}] == requests
    assert shown["llm_d_epp_scheduler_e2e_duration_seconds_count"] == {frozenset(): requests}
    assert shown["llm_d_epp_request_running"] == {frozenset({"model_name=m"}): 0}
    assert shown["llm_d_epp_ready_endpoints"] == {frozenset({"name=default"}): 1}
    assert shown["llm_d_epp_per_endpoint_queue_size"] == {frozenset({"name=default", "model_server_endpoint=only"}): 0}
    assert all(shown[f"llm_d_epp_{name}"].keys() == {frozenset({"name=default"})} for name in pool)


def samples(page: str) -> dict[str, dict[frozenset[str], float]]:
    found: dict[str, dict[frozenset[str], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = frozenset(f"{name}={value}" for name, value in sample.labels.items())
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_told_to_end_it_is_unready_at_once_and_lets_open_streams_finish(sim):
    async with (
        serving(sim, PLAIN, "--drain-timeout=1m") as served,
        served.channel() as channel,
        served.health() as health,
    ):
        watched = HealthStub(health).Watch(HealthCheckRequest(service="readiness"))
        assert (await watched.read()).status == SERVING
        call = exchange(channel)
        await ask(call)
        served.command.terminate()
        assert (await watched.read()).status == NOT_SERVING
        liveness = await HealthStub(health).Check(HealthCheckRequest(service="liveness"))
        assert liveness.status == SERVING
        await answer(call)
        assert await served.command.end() == 0


async def test_stream_that_outlasts_the_drain_timeout_is_cut(sim):
    async with serving(sim, PLAIN, "--drain-timeout", "50ms") as served, served.channel() as channel:
        call = exchange(channel)
        await ask(call)
        served.command.terminate()
        assert await call.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert await served.command.end() == 0


def trusting(port: int, certificate: bytes) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(
        f"127.0.0.1:{port}",
        grpc.ssl_channel_credentials(certificate),
        options=[("grpc.ssl_target_name_override", "localhost")],
    )


async def test_tls_is_the_default_and_health_checks_may_share_its_port(sim):
    async with serving(sim, "--health-checking") as served:
        certificate = ssl.get_server_certificate(("127.0.0.1", served.grpc_port)).encode()
        async with trusting(served.grpc_port, certificate) as channel:
            assert await destination_of(channel) == sim.address
            status = await HealthStub(channel).Check(HealthCheckRequest(service=SERVICE))
            assert status.status == SERVING
        async with served.channel() as plaintext:
            assert await exchange(plaintext).code() is grpc.StatusCode.UNAVAILABLE
        async with served.health() as health:  # its own port stays plaintext
            assert (await HealthStub(health).Check(HealthCheckRequest())).status == SERVING


async def test_certificate_comes_from_the_directory_named(sim, tmp_path):
    certificate = write_certificate(tmp_path)
    async with serving(sim, "--cert-path", str(tmp_path)) as served, trusting(served.grpc_port, certificate) as channel:
        assert await destination_of(channel) == sim.address


async def test_directory_without_a_certificate_is_named(tmp_path):
    exit_code, said = await outcome("serve", "--endpoints=127.0.0.1:1", f"--cert-path={tmp_path}", "--grpc-port=0")
    assert exit_code == 1
    problem = f"--cert-path {tmp_path}: No such file or directory: {tmp_path}/tls.key"
    assert said.error == f"error: {problem}; it must hold tls.crt and tls.key"


def write_certificate(directory: Path) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "of the operator's own")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    (directory / "tls.crt").write_bytes(certificate)
    (directory / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate
