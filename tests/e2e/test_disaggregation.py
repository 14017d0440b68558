# SPDX-License-Identifier: Apache-2.0
"""Prompts computed on one server and answered by another, and ranks of one server behind its one port."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, SERVED
from epp.lab.gateway.settings import ClusterType, GatewaySettings
from tests.support.config_files import endpoints_file, picker_config, with_pool
from tests.support.echo import echo
from tests.support.listening import listening
from tests.support.world import World, open_world, question

PREFILL_DECODE = (Path(__file__).parents[2] / "config" / "prefill-decode.yaml").read_text()
PREFILLER = "x-prefiller-host-port"
RANK = "x-data-parallel-host-port"
ROLE = "llm-d.ai/role"
LONG = "The quick brown fox jumps over the lazy dog. " * 200
"""9,000 bytes, so some 2,250 tokens; from 512 uncached ones on the file wants them computed elsewhere."""


def roles(sims) -> dict[str, tuple[str, dict[str, str]]]:
    """A pool in which servers named p… compute prompts, and the others answer."""
    return {name: (sim.address, {ROLE: "prefill" if name.startswith("p") else "decode"}) for name, sim in sims.items()}


@contextlib.asynccontextmanager
async def disaggregated(sims, directory: Path, config: str = PREFILL_DECODE) -> AsyncIterator[World]:
    pool = endpoints_file(directory / "endpoints.yaml", **roles(sims))
    async with open_world(sims=sims, config=with_pool(config, pool)) as world:
        await world.scraped()
        yield world


async def prefiller_of(world: World, prompt: str, **more) -> tuple[str, str | None]:
    """Send a request; return who answered it, and whom it was told to fetch the prompt's cache from."""
    server = await world.ask(prompt, **more)
    *_, record = await world.requests_at(server)
    named = [value for name, value in record["headers"] if name == PREFILLER]
    assert len(named) <= 1
    return server, named[0] if named else None


async def test_long_prompt_is_sent_to_decode_and_told_where_it_is_computed(simulated, tmp_path):
    sims = await simulated("p1", "p2", "d1", "d2")
    prefillers = {sims["p1"].address, sims["p2"].address}
    async with disaggregated(sims, tmp_path) as world:
        home, prefiller = await prefiller_of(world, LONG + "What jumps?")
        assert home in {"d1", "d2"}
        assert prefiller in prefillers

        for question in ("Who is lazy?", "Which fox?"):  # the decode server holds the text by now
            await world.settled()
            assert await prefiller_of(world, LONG + question) == (home, None)

        await world.settled()
        server, prefiller = await prefiller_of(world, "Quite another text. " * 500)
        assert server in {"d1", "d2"}
        assert prefiller in prefillers
        assert await prefiller_of(world, "A short one.") in [("d1", None), ("d2", None)]
        assert [await world.requests_at(name) for name in ("p1", "p2")] == [[], []]  # that is the sidecar's to do


async def test_clients_own_prefill_server_does_not_count(simulated, tmp_path):
    sims = await simulated("p1", "d1")
    forged = {"extra_headers": {PREFILLER: "10.0.0.1:8000"}}
    async with disaggregated(sims, tmp_path) as world:
        assert await prefiller_of(world, LONG, **forged) == ("d1", sims["p1"].address)
        assert await prefiller_of(world, "A short one.", **forged) == ("d1", None)


@dataclass
class Held:
    """A model server that gives its first token, and its last, when the test says so."""

    first: asyncio.Event = field(default_factory=asyncio.Event)
    last: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for word, allowed in (("first", self.first), ("last", self.last)):
            await allowed.wait()
            await response.write(f"data: {word}\n\n".encode())
        return response


async def test_prefill_server_is_credited_until_the_first_token(tmp_path):
    server = Held()
    async with listening(server.answer) as address, echo() as prefill:
        pool = endpoints_file(
            tmp_path / "endpoints.yaml",
            prefill=(prefill.address, {ROLE: "prefill"}),
            decode=(address, {ROLE: "decode"}),
        )
        unasked = {**yaml.safe_load(PREFILL_DECODE), "dataLayer": {"injectDefaults": False}}  # for their metrics
        async with open_world(config=with_pool(yaml.safe_dump(unasked), pool)) as world:
            async with world.http.post(
                f"{world.url}/v1/chat/completions", json=question(LONG, stream=True)
            ) as response:
                assert response.status == 200
                assert world.column(IN_FLIGHT) == {"prefill": 1, "decode": 1}
                tokens = world.column(IN_FLIGHT_TOKENS)
                assert tokens["prefill"] == tokens["decode"] > 2_000

                server.first.set()
                assert await response.content.readline() == b"data: first\n"

                assert world.column(IN_FLIGHT) == {"prefill": 0, "decode": 1}
                assert world.column(IN_FLIGHT_TOKENS) == {"prefill": 0, "decode": 0}
                server.last.set()
                assert (await response.read()).endswith(b"data: last\n\n")
            await world.settled()
            assert world.column(SERVED) == {"prefill": 1, "decode": 1}


DATA_PARALLEL = picker_config("""
plugins:
- type: data-parallel-profile-handler
  parameters: {primaryPort: PORT}
- type: active-request-scorer
dataLayer: {injectDefaults: false}
""")


@pytest.mark.parametrize("cluster", list(ClusterType))
async def test_ranks_are_reached_through_the_primary_port(cluster):
    gateway = GatewaySettings(listen_port=0, cluster_type=cluster)
    plain = {"answer-bytes": "10", "answer-as": "whole"}
    async with echo() as server, echo() as second, echo() as third:
        primary_port = server.address.rpartition(":")[2]
        ranks = {"rank0": server.address, "rank1": second.address, "rank2": third.address}
        pool = ",".join(f"{name}={address}" for name, address in ranks.items())
        config = DATA_PARALLEL.replace("PORT", primary_port)
        async with open_world(endpoints=pool, config=config, gateway=gateway) as world:
            for headers in (plain, plain, {**plain, RANK: "10.0.0.1:8000"}):
                url = f"{world.url}/v1/chat/completions"
                async with world.http.post(url, json=question(), headers=headers) as response:
                    assert response.status == 200
                    await response.read()
                await world.settled()
            assert sorted(headers[RANK] for headers in server.headers) == sorted(ranks.values())
            assert not second.headers + third.headers
            assert world.column(SERVED) == dict.fromkeys(ranks, 1)
