# SPDX-License-Identifier: Apache-2.0
"""A picker that starts: it serves nobody before it knows its endpoints, and then knows what they have under way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp
import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.app import Picker, PickerSettings, running_config
from epp.config import load_text
from epp.framework import Endpoint
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.local import discovery_response
from epp.lab.gateway.settings import ClusterType, FailureMode, GatewaySettings
from epp.lab.sim.server import RunningSim
from epp.pool.discovery import StaticDiscovery, parse_targets
from tests.support.commands import command
from tests.support.config_files import picker_config
from tests.support.exchanges import BODY, request_body
from tests.support.held_pages import CONFIG, HeldPages
from tests.support.ports import reserved_ports
from tests.support.serving import ANY_PORT as PICKER_ON_ANY_PORT
from tests.support.serving import PLAIN, destination_of, exchange, first_message, served_by, serving
from tests.support.transports import server_settings
from tests.support.waiting import read_until, until
from tests.support.world import pool_of, question

LONG = 150_000
"""Tokens that take much longer than any test."""
ROOM_FOR_TWO = picker_config("""
plugins: [{type: queue-scorer}, {type: concurrency-detector, parameters: {maxConcurrency: 2}}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: concurrency-detector}, {pluginRef: queue-scorer}]}
""")


async def refused(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """Send a request; return the status with which its stream ends."""
    call = exchange(channel)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.write(first_message())
        await call.write(request_body(BODY, end=True))
        await call.read()
    return await call.code()


async def health(channel: grpc.aio.Channel, name: str = "readiness") -> int:
    return (await HealthStub(channel).Check(HealthCheckRequest(service=name))).status


async def test_tf_15_picker_is_not_ready_and_refuses_until_its_endpoints_have_reported(monkeypatch):
    monkeypatch.setattr(running_config, "_CHECKS", 100_000)  # however slow this machine is
    picker = Picker(
        PickerSettings(
            server=server_settings("127.0.0.1:0"),
            config=load_text(CONFIG),
            plugin_modules=("tests.support.held_pages",),
            discovery=StaticDiscovery(parse_targets("127.0.0.1:9")),
        )
    )
    starting = asyncio.create_task(picker.start())
    try:
        await until(lambda: picker.port > 0, "it listens")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.port}") as channel:
            assert await health(channel, "liveness") == HealthCheckResponse.SERVING
            assert await health(channel) == HealthCheckResponse.NOT_SERVING
            assert await refused(channel) is grpc.StatusCode.UNAVAILABLE  # on which gateways fail open
            assert not starting.done()
            pages = picker.plugins["pages"]
            assert isinstance(pages, HeldPages)
            pages.told.set()
            await starting
            assert await health(channel) == HealthCheckResponse.SERVING
            assert await destination_of(channel) == "127.0.0.1:9"
    finally:
        starting.cancel()
        await picker.stop(drain_seconds=0)


@dataclass
class Client:
    """A client of the gateway."""

    url: str
    http: aiohttp.ClientSession

    def asking(self, tokens: int, *, stream: bool = False):
        """The context of one request and its response."""
        body = question("hello", tokens, ignore_eos=True, stream=stream)
        return self.http.post(f"{self.url}/v1/chat/completions", json=body)

    async def ask(self) -> tuple[int, str]:
        """Return the status of a short request, and the server of one that the picker sent there."""
        async with self.asking(2) as response:
            await response.read()
            picked = "x-went-into-resp-headers" in response.headers
            return response.status, response.headers.get("x-sim-server", "") if picked else ""

    async def stream(self) -> aiohttp.ClientResponse:
        """Begin a stream that does not end."""
        response = await self.asking(LONG, stream=True)
        assert response.status == 200
        assert await response.content.readline()
        return response


@contextlib.asynccontextmanager
async def gateway(sims: Mapping[str, RunningSim], port: int, tmp_path) -> AsyncIterator[Client]:
    """Envoy in front of a picker on that port; what is under way goes on without it."""
    eds_file = tmp_path / "endpoints.json"
    eds_file.write_bytes(discovery_response([Endpoint(name, sim.host, sim.port) for name, sim in sims.items()]))
    settings = GatewaySettings(
        listen_port=0,
        picker_address=f"127.0.0.1:{port}",
        cluster_type=ClusterType.OVERRIDE_HOST,
        failure_mode=FailureMode.FAIL_OPEN,
        eds_file=eds_file,
    )
    async with await EnvoyProcess.start(settings) as envoy, aiohttp.ClientSession() as http:
        yield Client(f"http://{envoy.address}", http)


async def test_tf_15_after_a_restart_a_full_server_is_avoided_until_its_old_requests_have_ended(simulated, tmp_path):
    sims = await simulated("a", "b")
    config = tmp_path / "config.yaml"
    config.write_text(ROOM_FOR_TWO)
    with reserved_ports(1) as (port,):
        where = (f"--endpoints={pool_of(sims)}", *PICKER_ON_ANY_PORT, f"--grpc-port={port}")
        flags = ("serve", f"--config-file={config}", *where, "--health-checking", PLAIN)
        async with gateway(sims, port, tmp_path) as client:
            async with command(*flags) as picker:
                await served_by(picker)
                await until(lambda: answered(client), "Envoy asks the picker")
                streams = [await client.stream() for _ in range(4)]
                old = {name: [s for s in streams if s.headers["x-sim-server"] == name] for name in sims}
                assert {name: len(those) for name, those in old.items()} == {"a": 2, "b": 2}
                assert (await client.ask())[0] == 429
                picker.kill()
                await picker.end()
            for stream in old["b"]:
                stream.close()
            async with command(*flags) as picker:
                served = await served_by(picker)
                _, page = await served.health_page()
                assert (page["ready"], page["inherited_requests"] >= 2) == (True, True)
                await until(lambda: answered(client), "Envoy asks the picker again, and b is empty")
                assert [await client.ask() for _ in range(6)] == [(200, "b")] * 6
                new = [await client.stream() for _ in range(2)]
                assert [stream.headers["x-sim-server"] for stream in new] == ["b", "b"]
                assert (await client.ask())[0] == 429  # b is full of ours, a of what was there before
                samples = await served.metrics()
                assert sum(samples["llm_d_epp_reservations_expired_total"].values()) == 0
                for stream in old["a"]:
                    assert await stream.content.readline()  # they still go on
                    stream.close()
                await read_until(
                    served.health_page, lambda page: not page[1]["inherited_requests"], "the old requests have ended"
                )
                assert [await client.ask() for _ in range(2)] == [(200, "a")] * 2
                for stream in new:
                    stream.close()


async def answered(client: Client) -> bool:
    status, server = await client.ask()
    return status == 200 and bool(server)


@pytest.mark.parametrize("ttl", ["0", "1h"])
async def test_tf_8_time_to_live_of_reservations_is_a_flag(sim, ttl):
    async with serving(sim, PLAIN, f"--reservation-ttl={ttl}") as served, served.channel() as channel:
        assert await destination_of(channel) == sim.address
