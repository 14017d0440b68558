# SPDX-License-Identifier: Apache-2.0
"""Servers that speak TLS or not, have metrics or not, and die: which are used, and what the gateway says of them."""

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path

import aiohttp
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from msgspec.structs import replace

from epp.framework.endpoint import EndpointTrust
from epp.framework.snapshot import REACHABLE
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.local import eds_file
from epp.lab.gateway.settings import ClusterType, GatewaySettings, SettingsError
from tests.support.commands import outcome
from tests.support.gateways import Gateway, gateway_of
from tests.support.in_process import running_picker
from tests.support.model_servers import BareServer, TlsFront, certificate_for, tls_in_front_of
from tests.support.serving import PLAIN, serving
from tests.support.waiting import read_until, until
from tests.support.world import ANY_PORT, MODEL, World, open_world


def trusting(file: Path | None = None, *, verify: bool = True) -> GatewaySettings:
    return replace(ANY_PORT, endpoint_trust=EndpointTrust(file, verify=verify))


async def served_by(world: World, requests: int = 12) -> set[str]:
    """Send so many requests at once; return the names of the servers that answered."""
    return set(await asyncio.gather(*(world.ask(f"question {number}", max_tokens=2) for number in range(requests))))


async def test_pool_of_http_and_https_servers_is_used_as_one(simulated, tmp_path):
    sims = await simulated("plain", "named", "bare")
    of_name, of_address = (certificate_for(host, tmp_path / host) for host in ("localhost", "127.0.0.1"))
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(of_name.authority.read_bytes() + of_address.authority.read_bytes())
    async with (
        tls_in_front_of(sims["named"].address, of_name) as named,
        tls_in_front_of(sims["bare"].address, of_address) as bare,
    ):
        secure = f"named=https://localhost:{named.port},bare=https://127.0.0.1:{bare.port}"
        endpoints = f"plain={sims['plain'].address},{secure}"
        async with open_world(endpoints=endpoints, sims=sims, gateway=trusting(authorities)) as world:
            await world.scraped()
            assert world.available == {"plain", "named", "bare"}
            assert await served_by(world, 24) == {"plain", "named", "bare"}
        assert hosts_of_requests(named) == {"localhost"}  # a proxy of many names needs its own
        assert hosts_of_requests(bare) == {world.url.removeprefix("http://")}
        assert set(named.names) == {"localhost"}
        assert set(bare.names) == {None}  # an address is not a name to ask for


def hosts_of_requests(front: TlsFront) -> set[str]:
    heads = re.findall(rb"POST .*?\r\n\r\n", bytes(front.received), re.DOTALL)
    return {host.decode() for head in heads for host in re.findall(rb"(?i)\r\nhost: (.*?)\r\n", head)}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_server_whose_certificate_is_not_trusted_gets_no_request_unless_told_so(simulated, tmp_path, host):
    sims = await simulated("plain", "secure")
    certificate = certificate_for(host, tmp_path / "certificate")
    async with tls_in_front_of(sims["secure"].address, certificate) as front:
        endpoints = f"plain={sims['plain'].address},secure=https://{host}:{front.port}"
        async with open_world(endpoints=endpoints, sims=sims, gateway=trusting()) as world:
            await until(lambda: world.column(REACHABLE)["secure"] == 0, "the certificate is found not to be trusted")
            assert await served_by(world) == {"plain"}
        async with open_world(endpoints=endpoints, sims=sims, gateway=trusting(verify=False)) as world:
            await world.scraped()
            assert await served_by(world) == {"plain", "secure"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize(
    ("certificate", "status"), [("good", 200), ("of an unknown authority", 503), ("for another name", 503)]
)
async def test_envoy_itself_verifies_certificates(simulated, tmp_path, host, certificate, status):
    """A picker that does not, as one whose gateway is elsewhere, is no way around it."""
    sims = await simulated("secure")
    of_the_server = certificate_for("gpu.example" if certificate == "for another name" else host, tmp_path / "server")
    unrelated = certificate_for(host, tmp_path / "unrelated")
    trusted = unrelated if certificate == "of an unknown authority" else of_the_server
    async with tls_in_front_of(sims["secure"].address, of_the_server) as front, contextlib.AsyncExitStack() as stack:
        address = f"unix:{tmp_path}/picker.sock"
        endpoints = f"secure=https://{host}:{front.port}"
        picker = await stack.enter_async_context(running_picker(endpoints, address=address))
        await stack.enter_async_context(eds_file(tmp_path / "endpoints.json", picker.store))
        gateway = replace(
            trusting(trusted.authority),
            picker_address=address,
            cluster_type=ClusterType.OVERRIDE_HOST,
            eds_file=tmp_path / "endpoints.json",
            endpoint_tls=True,
            endpoint_addresses=picker.tls_addresses,
        )
        envoy = await stack.enter_async_context(await EnvoyProcess.start(gateway, wait_for_picker=True))
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://{envoy.address}"))
        async with http.post("/v1/completions", json={"model": MODEL, "prompt": "hi"}) as response:
            assert response.status == status


async def test_cluster_type_without_tls_is_refused_for_https_endpoints(tmp_path):
    original_dst = replace(ANY_PORT, cluster_type=ClusterType.ORIGINAL_DST)
    with pytest.raises(SettingsError, match="original-dst cannot connect to https endpoints: leave it out, or choose"):
        async with open_world(endpoints="a=https://127.0.0.1:1", gateway=original_dst):
            pass


async def status_of(gateway: Gateway) -> int:
    return (await gateway.post("/v1/completions", {"model": MODEL, "prompt": "hi"})).status


def told_of(gateway: Gateway) -> dict[str, dict]:
    """What the log said last of the endpoints that need attention, by name."""
    lines = [json.loads(line) for line in gateway.process.err if line.startswith("{")]
    reports = [line for line in lines if line["msg"] == "endpoints"]
    return {entry["endpoint"]: entry for entry in reports[-1]["attention"]} if reports else {}


@pytest.mark.slow
async def test_server_without_metrics_that_dies_is_missed_everywhere_and_comes_back(port):
    server = BareServer(port)
    await server.start()
    try:
        async with gateway_of(f"--endpoints=bare=127.0.0.1:{server.port}") as gateway:
            await until(lambda: "bare" in told_of(gateway), "the start is reported")
            entry = told_of(gateway)["bare"]
            assert entry["used"]
            why = "/metrics answered 404 Not Found; its load is estimated from the requests sent to it"
            assert why in entry["why"]
            assert await status_of(gateway) == 200

            await server.stop()

            def refuses(health: dict) -> bool:  # a poll that was under way when the server died ends in another way
                return any(each["why"].endswith("connection refused") for each in health["unreachable"])

            health = await gateway.shows(refuses, "the server refuses connections")
            assert (health["ready"], health["endpoints"], health["reachable"]) == (False, 1, 0)
            assert health["unreachable"][0]["endpoint"] == "bare"
            assert health["unreachable"][0]["why"] == f"nothing listens at 127.0.0.1:{server.port}: connection refused"
            assert (await gateway.health())[0] == await status_of(gateway) == 503
            up = frozenset({"name=default", "model_server_endpoint=bare"})
            await read_until(
                gateway.metrics, lambda page: page["llm_d_epp_endpoint_up"] == {up: 0}, "the metric says so"
            )
            await until(lambda: not told_of(gateway)["bare"]["used"], "the death is reported")

            await server.start()

            await read_until(gateway.health, lambda answer: answer[0] == 200, "the gateway is ready again")
            assert await status_of(gateway) == 200
    finally:
        await server.stop()


async def test_picker_that_reaches_no_endpoint_is_not_ready_but_still_answers_its_gateway():
    with socket_that_nobody_serves() as port:
        async with serving(None, f"--endpoints=dead=127.0.0.1:{port}", PLAIN) as served, served.health() as channel:
            await read_until(served.health_page, lambda answer: answer[0] == 503, "the picker is not ready")
            answer = await HealthStub(channel).Check(HealthCheckRequest(service=""))
            assert answer.status == HealthCheckResponse.SERVING  # else the gateway would go around it, or say nothing


async def test_start_says_of_each_endpoint_whether_it_is_used_and_what_to_do(simulated, tmp_path):
    sims = await simulated("good", "hidden")
    with socket_that_nobody_serves() as refusing:
        async with tls_in_front_of(sims["hidden"].address, certificate_for("localhost", tmp_path / "c")) as front:
            endpoints = f"good={sims['good'].address},dead=127.0.0.1:{refusing},tls=localhost:{front.port}"
            async with gateway_of(f"--endpoints={endpoints}") as gateway:
                assert "for good, dead, tls, metrics on" in await gateway.process.says("listening on")
                await until(lambda: told_of(gateway).keys() == {"dead", "tls"}, "the start is reported")
                told = {name: (entry["used"], entry["remedy"]) for name, entry in told_of(gateway).items()}
                assert told == {
                    "dead": (False, "start the server, or correct the address"),
                    "tls": (False, f"write https://localhost:{front.port}, or scheme: https in a file of endpoints"),
                }


@contextlib.contextmanager
def socket_that_nobody_serves():
    with socket.socket() as bound:  # so nobody else listens there, but not listening
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.slow
async def test_printed_configuration_for_https_endpoints_has_tls():
    arguments = ("gateway", "--print-envoy-config", "--endpoints=a=https://localhost:443,b=https://[::1]:443")
    exit_code, said = await outcome(*arguments)
    assert exit_code == 1
    assert said.error.startswith("error: --eds-file: missing: an override-host cluster needs a file of endpoints")
    exit_code, said = await outcome(*arguments, "--eds-file=/etc/envoy/endpoints.json")
    assert exit_code == 0
    assert {line.strip() for line in said.out} >= {"- name: https", "- name: ::1", "auto_host_rewrite: true"}
