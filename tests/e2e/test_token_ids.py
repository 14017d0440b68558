# SPDX-License-Identifier: Apache-2.0
"""Chats in text that go where their blocks are: KV events of two servers, a real Envoy, and a render server."""

from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

from tests.e2e.test_kv_events import publishing
from tests.support.kv_publisher import stored
from tests.support.render_server import ids, render_server
from tests.support.uds_tokenizer import uds_tokenizer
from tests.support.waiting import until
from tests.support.world import MODEL

FIRST = "a question that is longer than two blocks"
TURNS = [("user", FIRST), ("assistant", "an answer"), ("user", "more")]
MESSAGES = [{"role": role, "content": text} for role, text in TURNS]
TOKENS = ids("".join(text for _, text in TURNS))


class Rendering:
    """A gateway with two servers, `a` and `b`, their publishers, and a render server."""

    def __init__(self, world, publishers, render) -> None:
        self.world, self.publishers, self.render = world, publishers, render
        plugins = world.gateway.picker.plugins
        self.tokens, self.index = plugins["token-producer"], plugins["precise-prefix-cache-producer"]

    async def holds_blocks(self, name: str) -> None:
        """Let a server report the three whole blocks of the conversation."""
        self.publishers[name].send(stored([11, 12, 13], TOKENS[:48], medium="GPU"))

        def indexed() -> bool:
            return [each.value for each in self.index.samples if each.metric.name == "kv_cache_index_blocks"] == [3]

        await until(indexed, "the blocks are indexed")

    async def server(self, messages=MESSAGES) -> str:
        """Return the server that answers a chat while none has load."""
        await self.world.settled()
        await self.world.scraped()
        create = self.world.client.chat.completions.with_raw_response.create
        raw = await create(model=MODEL, messages=messages, max_tokens=1)
        return raw.headers["x-sim-server"]

    @property
    def results(self):
        found = [each for each in self.tokens.samples if each.metric.name == "prompt_token_lookups"]
        return {each.labels[0]: each.value for each in found if each.value}


@asynccontextmanager
async def rendering(budget: str, method: str = ""):
    async with render_server() as render:
        method = method or f"vllm: {{url: '{render.url}'}}"
        parameters = f"{{modelName: base, {method}, budget: {budget}}}"
        async with publishing(f"- {{type: token-producer, parameters: {parameters}}}\n") as (world, publishers):
            yield Rendering(world, publishers, render)


async def test_next_turn_of_a_chat_goes_where_its_blocks_are():
    async with rendering("10s") as world:
        await world.holds_blocks("b")
        assert [await world.server() for _ in range(4)] == ["b"] * 4
        world.publishers["b"].close()  # its engine has ended
        await until(
            lambda: not world.index.dump_state(world.world.gateway.picker.store.snapshot())["distinctBlocks"],
            "its blocks are gone",
        )
        await world.holds_blocks("a")
        longer = [*MESSAGES, {"role": "assistant", "content": "well"}, {"role": "user", "content": "and"}]
        assert [await world.server(longer) for _ in range(4)] == ["a"] * 4
        assert world.results == {"fetched": 2, "cached": 6}
        (path, body), _ = world.render.asked
        assert (path, body["model"], body["messages"]) == ("/v1/chat/completions/render", "base", MESSAGES)


async def test_chat_goes_where_its_blocks_are_by_the_ids_of_a_tokenizer_service():
    with TemporaryDirectory() as folder:  # a socket's path is short
        async with (
            uds_tokenizer(path := f"{folder}/socket") as service,
            rendering("10s", f"udsTokenizerConfig: {{socketFile: {path}}}") as world,
        ):
            await world.holds_blocks("b")
            fetches = world.tokens._fetches  # noqa: SLF001  there is no other way to it
            await until(lambda: service.loaded and fetches._is_open, "the tokenizer is loaded")  # noqa: SLF001
            assert [await world.server() for _ in range(4)] == ["b"] * 4
            assert world.results == {"fetched": 1, "cached": 3}
