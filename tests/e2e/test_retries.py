# SPDX-License-Identifier: Apache-2.0
"""A gateway in front of the gateway sends a request again: the picker counts the attempt that is alive alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from epp.app import PickerSettings
from epp.config import load_text
from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.lab.gateway.local import LocalGateway, local_gateway
from epp.lab.gateway.settings import GatewaySettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from epp.routing.director import Cause
from epp.runtime.addresses import parse_host_port
from tests.support.config_files import picker_config
from tests.support.listening import listening
from tests.support.own_envoy import own_envoy
from tests.support.ports import reserved_ports
from tests.support.stepwise import Endings
from tests.support.transports import server_settings
from tests.support.waiting import until

CONFIG = picker_config("""
plugins: [{type: active-request-scorer}]
dataLayer: {injectDefaults: false}
""")


def edge_config(port: int, gateway: str, patience: str, *, hedged: bool) -> dict:
    """An Envoy that gives a server so long for its headers, and says which attempt each request is."""
    target = parse_host_port(gateway)
    address = {"socket_address": {"address": target.host, "port_value": target.port}}
    route = {
        "cluster": "gateway",
        "timeout": "60s",
        "retry_policy": {"retry_on": "5xx,reset", "num_retries": 1, "per_try_timeout": patience},
        **({"hedge_policy": {"hedge_on_per_try_timeout": True}} if hedged else {}),
    }
    host = {
        "name": "all",
        "domains": ["*"],
        "include_request_attempt_count": True,
        "routes": [{"match": {"prefix": "/"}, "route": route}],
    }
    kind = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "edge",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{kind}.http.router.v3.Router"}}],
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    cluster = {"name": "gateway", "load_assignment": {"cluster_name": "gateway", "endpoints": endpoints}}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@dataclass
class Server:
    """Answers at once, but some attempts only when they are let go on."""

    name: str
    address: str = ""
    attempts: list[tuple[str, str]] = field(default_factory=list)
    """Id and attempt of each request."""
    stuck: Collection[str] = ()
    status: int = 200
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        attempt = request.headers["x-envoy-attempt-count"]
        self.attempts.append((request.headers["x-request-id"], attempt))
        await request.read()
        if attempt in self.stuck:
            await self.go_on.wait()
        return web.json_response({"choices": [{"text": self.name}]}, status=self.status)


@dataclass
class Setup:
    servers: list[Server]
    gateway: LocalGateway
    endings: Endings
    url: str
    http: aiohttp.ClientSession

    async def ask(self) -> tuple[int, str]:
        body = {"model": "m", "prompt": "hello"}
        async with self.http.post(f"{self.url}/v1/completions", json=body) as response:
            return response.status, (await response.json())["choices"][0]["text"]

    def column(self, column) -> list[float]:
        return self.gateway.picker.store.snapshot().column(column)[: len(self.servers)].tolist()


@contextlib.asynccontextmanager
async def behind_an_edge(directory: Path, patience: str, *, hedged: bool = False) -> AsyncIterator[Setup]:
    """Two servers behind a gateway behind a gateway."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [Server("a"), Server("b")]
        for server in servers:
            server.address = await stack.enter_async_context(listening(server.answer))
        endings = Endings()
        settings = PickerSettings(
            server=server_settings(),
            config=load_text(CONFIG),
            discovery=StaticDiscovery(parse_targets(",".join(f"{each.name}={each.address}" for each in servers))),
            observers=(endings,),
        )
        gateway = await stack.enter_async_context(local_gateway(settings, GatewaySettings(listen_port=0)))
        (port,) = stack.enter_context(reserved_ports(1))
        edge = edge_config(port, str(gateway.envoy.address), patience, hedged=hedged)
        await stack.enter_async_context(own_envoy(edge, directory, port))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Setup(servers, gateway, endings, f"http://127.0.0.1:{port}", http)


async def test_tf_8_attempt_that_a_gateway_gives_up_counts_no_more_and_the_next_goes_elsewhere(directory):
    async with behind_an_edge(directory, "4s") as setup:
        for server in setup.servers:
            server.stuck = {"1"}
        status, name = await setup.ask()
        assert status == 200
        first, second = sorted(setup.servers, key=lambda each: each.attempts[0][1])
        assert (name, [each.attempts[0][1] for each in (first, second)]) == (second.name, ["1", "2"])
        assert first.attempts[0][0] == second.attempts[0][0]
        await until(lambda: not any(setup.column(IN_FLIGHT)), "nothing is in flight")
        assert setup.column(SERVED) == [1, 1]


async def test_tf_8_where_a_gateway_waits_for_both_attempts_the_first_one_ends(directory):
    async with behind_an_edge(directory, "1s", hedged=True) as setup:
        for server in setup.servers:
            server.stuck = {"1", "2"}
        asking = asyncio.create_task(setup.ask())
        await until(lambda: setup.endings.completed_as, "the first one has ended")
        assert setup.endings.completed_as == [(Cause.SUPERSEDED, 503)]
        await until(lambda: all(each.attempts for each in setup.servers), "each server has one")
        second = next(each for each in setup.servers if each.attempts[0][1] == "2")
        assert setup.column(IN_FLIGHT)[setup.servers.index(second)] == sum(setup.column(IN_FLIGHT)) == 1
        second.go_on.set()
        assert await asking == (200, second.name)
        await until(lambda: not any(setup.column(IN_FLIGHT)), "nothing is in flight")
        assert setup.column(SERVED) == [1, 1]


async def test_tf_8_attempt_after_an_error_goes_elsewhere_and_counts_are_even(directory):
    async with behind_an_edge(directory, "30s") as setup:
        setup.servers[0].status = 503
        assert {await setup.ask() for _ in range(6)} == {(200, "b")}
        await until(lambda: not any(setup.column(IN_FLIGHT)), "nothing is in flight")
        failed, served = (len(each.attempts) for each in setup.servers)
        assert served == 6
        assert failed > 0
        assert setup.column(SERVED) == [failed, served]
        assert {cause for cause, _ in setup.endings.completed_as} == {Cause.NATURAL}
