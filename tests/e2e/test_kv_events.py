# SPDX-License-Identifier: Apache-2.0
"""KV events of two servers, a real Envoy, and requests that go where their blocks are."""

from contextlib import AsyncExitStack

import msgspec

from epp.config.load import sample_texts
from epp.lab.sim import running
from tests.support.kv_publisher import CLEARED, Publisher, stored
from tests.support.ports import reserved_ports
from tests.support.waiting import until
from tests.support.world import FAST, MODEL, open_world

PROMPT = list(range(100, 164))
HASHES = [11, 12, 13, 14]


async def test_request_goes_where_its_blocks_are_and_elsewhere_when_they_are_gone():
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
        endpoints = ",".join(f"{name}={sim.address}" for name, sim in sims.items())
        world = await stack.enter_async_context(open_world(endpoints=endpoints, sims=sims, config=config))
        for each in publishers.values():
            await each.subscribed(lambda ready: until(ready, "the picker has subscribed"))
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
        assert {each.value for each in producer.samples if each.labels == ("connection lost",)} == {1}
