# SPDX-License-Identifier: Apache-2.0
"""The picker names several endpoints in order, and Envoy walks the list when one takes no connection."""

import asyncio
import contextlib
import os
import signal
import tempfile
from dataclasses import dataclass

import aiohttp
import msgspec
import numpy as np
import openai
import pytest

from epp.framework import Endpoint
from epp.framework.snapshot import IN_FLIGHT, METRICS_AT, SERVED
from epp.lab.demo.servers import ModelServer, ServerSpec, model_servers
from epp.lab.gateway.local import discovery_response
from epp.lab.gateway.settings import ClusterType, GatewaySettings
from epp.routing.settings import OutlierSettings
from tests.support.commands import command
from tests.support.config_files import endpoints_file, picker_config
from tests.support.waiting import until
from tests.support.world import ENDLESS, MODEL, World, client_of, open_world, question, rest_of

OVERRIDE_HOST = GatewaySettings(listen_port=0, cluster_type=ClusterType.OVERRIDE_HOST)
# With metrics of idle servers every score is alike, so that the endpoints take turns; and as they are not asked again,
# nobody notices when one dies, as long as nothing else is taken for a sign of that.
TURNS = picker_config("""
plugins:
- {type: metrics-data-source, parameters: {interval: 1h}}
- type: queue-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
""")
FROM_FILE = picker_config("""
plugins:
- type: file-discovery
  parameters: {{path: {path}, watchFile: true}}
- type: queue-scorer
dataLayer: {{discovery: {{pluginRef: file-discovery}}, injectDefaults: false}}
""")


@contextlib.asynccontextmanager
async def steady_and_doomed(simulated, config: str = TURNS):
    """Two servers of which the other is a process that one can kill; the gateway has asked each of them once."""
    sims = await simulated("steady")
    with tempfile.TemporaryDirectory() as directory:
        admin = f"{directory}/admin.sock"
        gateway = msgspec.structs.replace(OVERRIDE_HOST, admin_address=f"unix:{admin}")
        async with model_servers([ServerSpec("h100")], MODEL) as (server,):
            endpoints = f"steady={sims['steady'].address},doomed={server.address}"
            blind = OutlierSettings(enabled=False)
            async with open_world(
                endpoints=endpoints, sims=sims, config=config, gateway=gateway, outliers=blind
            ) as world:
                await until(lambda: not np.isnan(list(world.column(METRICS_AT).values())).any(), "both were asked")
                assert {await world.ask("one"), await world.ask("other")} == {"steady", "h100"}
                yield world, Doomed(server, admin)


@dataclass
class Doomed:
    server: ModelServer
    admin: str

    @property
    def address(self) -> str:
        return self.server.address

    async def kill(self) -> None:
        """Return once the port refuses connections and Envoy has seen those it had close.

        Linux closes the sockets of a process one by one: Envoy may see its connection end while the listener still
        takes another, which is reset when it is the listener's turn. A request sent in between is no safe retry.
        """
        os.kill(self.server.pid, signal.SIGKILL)
        await until(self._refuses, "the port refuses connections")
        async with aiohttp.ClientSession("http://envoy", connector=aiohttp.UnixConnector(self.admin)) as http:

            async def disconnected() -> bool:
                async with http.get("/clusters") as clusters:
                    return f"::{self.address}::cx_active::0" in await clusters.text()

            await until(disconnected, "Envoy has no connection to the server")

    async def _refuses(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionError as error:
            return isinstance(error, ConnectionRefusedError)
        writer.close()
        return False


async def let_doomed_be_next(world: World) -> None:
    """Ask twice, which shows whose turn it is, and once more if it is not that of the doomed server."""
    turns = [await world.ask("whose turn?"), await world.ask("and then?")]
    assert sorted(turns) == ["h100", "steady"]
    if turns[0] == "steady":
        await world.ask("now it is the other's turn")


async def test_request_for_a_dead_server_is_served_by_the_next_of_the_list(simulated):
    async with steady_and_doomed(simulated) as (world, doomed):
        await let_doomed_be_next(world)
        served_before = world.column(SERVED)["steady"]

        await doomed.kill()

        assert await world.ask("first choice is dead") == "steady"
        assert await world.ask("first choice is alive") == "steady"
        # More than Envoy holds of a connection: the body, too, is sent again.
        padding = {"extra_body": {"metadata": {"padding": "x" * 3_000_000}}}
        assert {await world.ask(f"large {i}", **padding) for i in range(2)} == {"steady"}
        await world.settled()
        assert world.column(SERVED)["steady"] == served_before + 4  # the books follow the request to who served it
        assert world.available == {"steady", "doomed"}  # the picker has not noticed


async def test_many_requests_at_once_walk_the_list(simulated):
    async with steady_and_doomed(simulated) as (world, doomed):
        await doomed.kill()
        answers = await asyncio.gather(*(world.ask(f"q{i}") for i in range(50)))
        assert set(answers) == {"steady"}


async def test_request_that_a_server_may_have_begun_is_not_sent_to_another(simulated):
    async with steady_and_doomed(simulated) as (world, doomed):
        await let_doomed_be_next(world)
        at_steady = len(await world.requests_at("steady"))
        begun = asyncio.create_task(world.ask("until you die", max_tokens=8_000, **ENDLESS))
        await until(lambda: world.column(IN_FLIGHT)["doomed"] == 1, "a request is at the doomed server")
        async with world.http.get(f"http://{doomed.address}/sim/requests") as response:
            assert await response.json()

        await doomed.kill()

        with pytest.raises(openai.APIError):
            await begun
        assert len(await world.requests_at("steady")) == at_steady


async def test_list_of_dead_servers_is_503_and_no_other_server_is_taken(simulated):
    only_one = TURNS.replace("maxNumOfEndpoints: 3", "maxNumOfEndpoints: 1")
    async with steady_and_doomed(simulated, only_one) as (world, doomed):
        await let_doomed_be_next(world)
        await doomed.kill()
        with pytest.raises(openai.InternalServerError) as refused:
            await world.ask("named one, and it is dead")
        assert refused.value.response.status_code == 503
        assert await world.ask("steady's turn") == "steady"


async def reached(world: World, name: str) -> None:
    """Wait for an answer from the server: the picker knows an endpoint a moment before Envoy does."""

    async def answers() -> bool:
        with contextlib.suppress(openai.InternalServerError):
            return await world.ask("who is there?") == name
        return False

    await until(answers, f"server {name} answers")


async def test_envoy_follows_the_pool_without_a_restart(simulated, tmp_path):
    sims = await simulated("a", "b")
    path = tmp_path / "endpoints.yaml"

    def write(*names: str) -> None:
        endpoints_file(path, **{name: (sims[name].address, {}) for name in names})

    write("a")
    async with open_world(sims=sims, config=FROM_FILE.format(path=path), gateway=OVERRIDE_HOST) as world:
        assert {await world.ask(f"q{i}") for i in range(3)} == {"a"}
        stream = await world.stream(400)

        write("b")

        await reached(world, "b")
        await rest_of(stream)  # the leaving server ends it
        write("a", "b")
        await reached(world, "a")
        assert {await world.ask(f"q{i}") for i in range(4)} == {"a", "b"}


async def test_pool_may_be_empty_at_the_start(simulated, tmp_path):
    sims = await simulated("a")
    path = endpoints_file(tmp_path / "endpoints.yaml")
    async with open_world(sims=sims, config=FROM_FILE.format(path=path), gateway=OVERRIDE_HOST) as world:
        with pytest.raises(openai.InternalServerError):
            await world.ask("anybody?")
        endpoints_file(path, a=(sims["a"].address, {}))
        await until(lambda: world.available == {"a"}, "the server is in the pool")
        await reached(world, "a")


async def test_command_keeps_the_file_and_serves_with_it(sim, tmp_path):
    eds_file = tmp_path / "endpoints.json"
    flags = ("--listen=127.0.0.1:0", "--cluster-type=override-host", "--failure-mode=FailOpen")
    async with command("gateway", *flags, f"--eds-file={eds_file}", f"--endpoints={sim.address}") as gateway:
        url = await gateway.url()
        assert eds_file.read_bytes() == discovery_response([Endpoint("a", sim.host, sim.port)])
        async with client_of(url) as client:
            raw = await client.chat.completions.with_raw_response.create(**question())
        assert raw.headers["x-sim-server"] == "a"
        assert raw.headers["x-went-into-resp-headers"] == "true"
