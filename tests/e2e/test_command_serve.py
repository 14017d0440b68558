# SPDX-License-Identifier: Apache-2.0
"""`epp serve` from outside: ext_proc, health, metrics, and how large a message may be."""

import asyncio
import contextlib
import json
import os
import socket
import ssl

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.extproc.wire import SERVICE
from tests.support.commands import command
from tests.support.config_files import picker_config
from tests.support.exchanges import request_body, response_headers
from tests.support.serving import ANY_PORT, PLAIN, Served, ask, destination_of, exchange, first_message, serving
from tests.support.waiting import read_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = HealthCheckResponse.SERVING


async def test_request_has_a_line_and_its_response_tells_where_it_came_from_if_asked_to(module_sim):
    async with serving(module_sim, PLAIN, "--decision-headers") as served:
        async with served.channel() as channel:
            call = exchange(channel)
            await ask(call)
            await call.write(response_headers(end=True))
            mutation = (await call.read()).response_headers.response.header_mutation
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        told = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
        line = json.loads(await served.command.says('"msg":"request"'))
    assert told["x-epp-endpoint"] == f"only={module_sim.address}"
    assert told["x-epp-reason"] == line["why"] == "default: the only one there is; 0% cached"
    assert (line["endpoint"], line["address"], line["status"]) == ("only", module_sim.address, 200)


UNREAD_POOL = picker_config("""
plugins: [{{type: queue-scorer}}, {{type: file-discovery, parameters: {{path: {path}}}}}]
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
""")


async def test_tf_15_health_is_alive_yet_not_ready_until_the_pool_is_read(tmp_path, port):
    pool, config = tmp_path / "endpoints.yaml", tmp_path / "config.yaml"
    os.mkfifo(pool)  # reading it takes until something is written
    config.write_text(UNREAD_POOL.format(path=pool))
    ports = ("--grpc-port=0", f"--grpc-health-port={port}", "--metrics-port=0")
    async with command("serve", PLAIN, f"--config-file={config}", "--drain-quiet-period=10ms", *ports) as picker:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            health = HealthStub(channel)
            names = ("inference-extension", "readiness")
            watches = [health.Watch(HealthCheckRequest(service=name), wait_for_ready=True) for name in names]
            assert [(await watch.read()).status for watch in watches] == [HealthCheckResponse.NOT_SERVING] * 2
            assert (await health.Check(HealthCheckRequest(service="liveness"))).status == SERVING

            await asyncio.to_thread(pool.write_text, "endpoints: []")

            assert [(await watch.read()).status for watch in watches] == [SERVING] * 2
        picker.terminate()
        assert await picker.end() == 0


async def test_start_line_has_the_address_of_each_server_and_bind_address_is_all_that_is_listened_on():
    flags = ("--endpoints=1", PLAIN, "--drain-quiet-period=10ms", *ANY_PORT)
    for bound, host in (((), "*"), (("--bind-address=127.0.0.1",), "127.0.0.1")):
        async with command("serve", *flags, *bound) as picker:
            line = await picker.ready()
            for server in ("ext_proc", "health", "metrics"):
                shown, _, port = line[server].rpartition(":")
                assert shown == host
                assert await _accepts("127.0.0.1", port)
                assert await _accepts("::1", port) is (host == "*" and socket.has_dualstack_ipv6())


async def _accepts(host: str, port: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def test_health_is_not_on_the_main_port_where_that_is_switched_off(module_sim):
    async with serving(module_sim, PLAIN, "--health-checking=false") as served, served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await HealthStub(channel).Check(HealthCheckRequest(service="readiness"))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metrics_page_counts_requests_and_shows_the_pool(served):
    async with served.channel() as channel:
        await destination_of(channel)
    pool = {"ready_endpoints", "average_queue_size", "average_running_requests", "average_kv_cache_utilization"}
    reported = "the endpoint's first report is on the page"
    shown = await read_until(served.metrics, lambda page: "llm_d_epp_per_endpoint_queue_size" in page, reported)
    ((labels, requests),) = shown["llm_d_epp_request_total"].items()
    assert labels == {"model_name=m", "target_model_name=m", "fairness_id=default-flow", "priority=0"}
    assert requests >= 1
    assert shown["llm_d_epp_request_duration_seconds_count"] == {labels: requests}
    assert shown["llm_d_epp_request_ttft_seconds_count"][labels | {"streaming=false"}] == requests
    assert shown["llm_d_epp_scheduler_e2e_duration_seconds_count"] == {frozenset(): requests}
    assert shown["llm_d_epp_request_running"] == {labels: 0}
    assert shown["llm_d_epp_ready_endpoints"] == {frozenset({"name=default"}): 1}
    assert shown["llm_d_epp_per_endpoint_queue_size"] == {frozenset({"name=default", "model_server_endpoint=only"}): 0}
    assert all(shown[f"llm_d_epp_{name}"].keys() == {frozenset({"name=default"})} for name in pool)


async def test_tls_is_the_default_and_health_checks_share_its_port(module_sim):
    async with serving(module_sim) as served:
        certificate = ssl.get_server_certificate(("127.0.0.1", served.grpc_port)).encode()
        async with served.trusting(certificate) as channel:
            assert await destination_of(channel) == module_sim.address
            status = await HealthStub(channel).Check(HealthCheckRequest(service=SERVICE))
            assert status.status == SERVING
        async with served.channel() as plaintext:
            assert await exchange(plaintext).code() is grpc.StatusCode.UNAVAILABLE
        async with served.health() as health:  # its own port stays plaintext
            assert (await HealthStub(health).Check(HealthCheckRequest())).status == SERVING


async def sent(served: Served, body_bytes: int) -> grpc.StatusCode:
    """Send a body in one message, not its last; return how the stream ends once nothing more is sent."""
    async with served.channel() as channel:
        call = exchange(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(first_message())
            await call.write(request_body(bytes(body_bytes), end=False))
            await call.done_writing()
            async for _ in call:  # perhaps a refusal: a message may be larger than a body
                pass
        return await call.code()


@pytest.mark.parametrize(
    ("flags", "most_bytes"),
    [
        ((), 33 << 20),  # a body of 32 MiB and 1 MiB beside it
        (("--max-request-body=1Mi",), 2 << 20),
        (("--max-request-body=1Mi", "--grpc-max-recv-msg-size=64Ki"), 64 << 10),
        (("--grpc-max-recv-msg-size=3Gi", "--max-request-body=8Gi"), None),  # more than gRPC can, so no limit
    ],
    ids=["default", "follows the body", "of its own", "without end"],
)
async def test_message_may_be_as_large_as_a_body(module_sim, flags, most_bytes):
    async with serving(module_sim, PLAIN, *flags) as served:
        if most_bytes is None:
            assert await sent(served, 40 << 20) is grpc.StatusCode.OK
        else:
            assert await sent(served, most_bytes - 100) is grpc.StatusCode.OK
            assert await sent(served, most_bytes) is grpc.StatusCode.RESOURCE_EXHAUSTED
