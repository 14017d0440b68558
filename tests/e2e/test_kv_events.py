# SPDX-License-Identifier: Apache-2.0
"""KV events of two servers, a real Envoy, and requests that go where their blocks are."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from epp.config.load import sample_texts
from epp.lab.sim.server import running
from tests.support.config_files import endpoints_file, replace
from tests.support.kv_publisher import CLEARED, Publisher, stored
from tests.support.ports import reserved_ports
from tests.support.waiting import until
from tests.support.world import FAST, MODEL, World, open_world, pool_of

PROMPT = list(range(100, 164))
HASHES = [11, 12, 13, 14]


@asynccontextmanager
async def publishing(more_plugins: str = "") -> AsyncIterator[tuple[World, dict[str, Publisher]]]:
    """A gateway with two servers, `a` and `b`, whose KV events the picker follows, and their publishers."""
    async with AsyncExitStack() as stack:
        (port,) = stack.enter_context(reserved_ports(1))
        first = Publisher("tcp://127.0.0.1:*", model=MODEL)
        publishers = {"a": first, "b": Publisher(f"tcp://127.0.0.2:{first.port}", model=MODEL)}
        sims = {}
        for number, name in enumerate(publishers, 1):
            stack.callback(publishers[name].close)
            profile = msgspec.structs.replace(FAST, name=name)
            sims[name] = await stack.enter_async_context(running(profile, f"127.0.0.{number}", port))
        config = sample_texts()["precise-prefix"].replace("5557", str(first.port))
        config = config.replace("plugins:\n", f"plugins:\n{more_plugins}", 1)
        world = await stack.enter_async_context(open_world(endpoints=pool_of(sims), sims=sims, config=config))
        for each in publishers.values():
            await each.subscribed()
        yield world, publishers


async def test_request_goes_where_its_blocks_are_and_elsewhere_when_they_are_gone():
    async with publishing() as (world, publishers):
        producer = world.gateway.picker.plugins["precise-prefix-cache-producer"]

        async def has(blocks: int) -> None:
            def counted() -> bool:
                (found,) = [each.value for each in producer.samples if each.metric.name == "kv_cache_index_blocks"]
                return found == blocks

            await until(counted, f"{blocks} blocks are indexed")

        async def servers(*ids: int) -> list[str]:
            found = []
            for _ in range(4):
                await world.settled()
                await world.scraped()
                raw = await world.client.completions.with_raw_response.create(
                    model=MODEL, prompt=list(ids), max_tokens=1
                )
                found.append(raw.headers["x-sim-server"])
            return found

        publishers["b"].send(stored(HASHES, PROMPT, medium="GPU"))
        await has(4)
        assert await servers(*PROMPT) == ["b"] * 4
        # the simulated server had nothing of the prompt at first, and then all whole blocks but the last
        checked = {each.labels: each.value for each in producer.samples if each.metric.name == "prefix_check_responses"}
        assert checked == {("wrong",): 1, ("right",): 3}
        publishers["a"].send(stored(HASHES, PROMPT, medium="GPU"))
        publishers["b"].send(CLEARED, stored([77], range(16), medium="GPU"))
        await has(5)
        assert await servers(*PROMPT) == ["a"] * 4
        assert await servers(*range(16)) == ["b"] * 4
        publishers["b"].close()  # its engine has ended
        await has(4)
        assert {each.value for each in producer.samples if each.labels == ("disconnection",)} == {1}


async def test_reload_keeps_the_index_of_unchanged_parameters_and_a_replay_fills_a_new_one(simulated, tmp_path):
    sims = await simulated("a")
    host, _, port = sims["a"].address.rpartition(":")
    publisher = Publisher(f"tcp://{host}:*", model=MODEL).repeat(f"tcp://{host}:*")
    replay = publisher.replay_address.rpartition(":")[2]
    text = sample_texts()["precise-prefix"].replace("5557", f"{publisher.port}, replaySocketPort: {replay}")
    discovery = (
        "- {type: file-discovery, parameters: {path: POOL}}\ndataLayer:\n  discovery: {pluginRef: file-discovery}"
    )
    pool = endpoints_file(tmp_path / "pool.yaml", a=(f"{host}:{port}", {}))
    text = text.replace("dataLayer:", discovery.replace("POOL", str(pool)))
    file = tmp_path / "config.yaml"
    replace(file, text)
    async with open_world(config_file=file) as world:
        picker = world.gateway.picker

        def producer():
            return picker.plugins["precise-prefix-cache-producer"]

        def blocks() -> int:
            return producer().dump_state(world.gateway.picker.store.snapshot())["distinctBlocks"]

        async def reload(text: str, generation: int) -> None:
            replace(file, text)
            await until(lambda: picker.config.generation == generation, "the configuration is in effect")

        first = producer()
        await until(lambda: publisher.asked == [0], "the history is asked for")
        publisher.send(stored(HASHES, PROMPT, medium="GPU"))
        await until(lambda: blocks() == 4, "the blocks are indexed")
        text = text.replace("weight: 3", "weight: 4").replace(
            "dataLayer:", "- type: cluster-data-source\ndataLayer:", 1
        )
        await reload(text, 2)
        assert producer() is first
        assert (blocks(), publisher.asked) == (4, [0])
        await reload(text.replace("blockSizeTokens: 16", "blockSizeTokens: 32"), 3)
        assert producer() is not first
        await until(lambda: blocks() == 4, "the history is asked for again")
        assert publisher.asked == [0, 0]
    publisher.close()
