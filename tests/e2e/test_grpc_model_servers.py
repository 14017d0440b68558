# SPDX-License-Identifier: Apache-2.0
"""Model servers with a gRPC API, behind a real Envoy: which of them gets a request, and the tokens that are counted."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
import pytest_asyncio

from tests.e2e.test_trailers import post_with_trailers
from tests.support.config_files import picker_config
from tests.support.gateways import Gateway, gateway_of
from tests.support.vllm_grpc import Client, Engine, engine, framed, generate
from tests.support.waiting import read_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = picker_config("""
plugins:
- {type: vllmgrpc-parser}
- {type: vertexai-parser}
- {type: approx-prefix-cache-producer, parameters: {autoTune: false}}
- {type: prefix-cache-scorer}
- {type: no-hit-lru-scorer}
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}, {pluginRef: vertexai-parser}]}
dataLayer: {injectDefaults: false}
""")


@dataclass
class World:
    engines: list[Engine]
    gateway: Gateway
    client: Client

    def served(self) -> list[int]:
        """Requests that each engine got."""
        return [len(one.asked) for one in self.engines]

    async def counted(self) -> list[float]:
        """Tokens in the metrics: of prompts, generated and cached."""
        return [await self.gateway.total(f"request_{kind}_tokens_sum") for kind in ("input", "output", "cached")]

    @asynccontextmanager
    async def counts(self, *expected: float) -> AsyncIterator[None]:
        """Wait at the end of the block until these tokens are counted, of those that were not before."""
        before = await self.counted()
        yield
        after = [*map(sum, zip(before, expected, strict=False))]
        await read_until(self.counted, lambda found: found[: len(after)] == after, "the tokens are counted")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory) -> AsyncIterator[World]:
    config = tmp_path_factory.mktemp("grpc") / "config.yaml"
    config.write_text(CONFIG)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(name)) for name in "ab"]
        pool = ",".join(f"{one.name}={one.address}" for one in engines)
        flags = (f"--config-file={config}", f"--endpoints={pool}", "--endpoint-http2")
        gateway = await stack.enter_async_context(gateway_of(*flags))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(gateway.url.removeprefix("http://")))
        yield World(engines, gateway, Client(channel))


@pytest.fixture
def world(shared: World) -> World:
    for one in shared.engines:
        one.asked.clear()
        one.metadata.clear()
    return shared


async def test_prompt_goes_where_its_beginning_went_and_others_spread(world):
    first, second = list(range(1000, 1300)), list(range(5000, 5300))
    for _ in range(3):
        for ids in (first, second):
            await world.client.generate(generate(ids, stream=True, sampling_params={"max_tokens": 2}))
    await world.client.embed(first)
    assert sorted(world.served()) == [3, 4]
    for one in world.engines:
        assert len({tuple(request.tokenized.input_ids) for request in one.asked}) == 1
        assert {metadata["x-gateway-destination-endpoint"] for metadata in one.metadata} == {one.address}


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_in_responses_are_counted_and_pieces_arrive(world, stream):
    async with world.counts(30, 5, 4):
        responses = await world.client.generate(generate([7] * 30, stream=stream, sampling_params={"max_tokens": 5}))
    assert len(responses) == (6 if stream else 1)


async def test_embedding_counts_its_prompt(world):
    async with world.counts(3):
        assert len((await world.client.embed([1, 2, 3])).embedding) == 5000


async def test_chat_of_vertex_is_routed_by_its_prompt_and_counted(world):
    async with world.counts(33, 6):
        for question in ("a", "b", "a"):
            messages = [{"role": "user", "content": question * 1000}]
            assert len(await world.client.vertex_chat(model="m", stream=True, messages=messages)) == 2
    assert sorted(world.served()) == [1, 2]


async def test_long_prompt_arrives_whole(world):
    ids = list(range(200_000, 500_000))  # 900 KB, several HTTP/2 windows
    await world.client.generate(generate(ids))
    (arrived,) = [request for one in world.engines for request in one.asked]
    assert list(arrived.tokenized.input_ids) == ids


async def test_other_methods_pass(world):
    assert await world.client.health() == b""


async def refused(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_error_of_a_server_reaches_the_client_and_its_prompt_is_not_taken_for_cached(world):
    for _ in range(2):
        found = await refused(world.client.generate(generate([13] * 300)))
        assert found == (grpc.StatusCode.UNAVAILABLE, "no room")
    assert world.served() == [1, 1]  # nobody is believed to hold the prompt


async def test_compressed_request_is_refused_in_the_words_of_grpc(world):
    code, details = await refused(world.client.generate(generate([1] * 300), compression=grpc.Compression.Gzip))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "the gRPC request cannot be read: its message is compressed: send it without compression"
    assert world.served() == [0, 0]


@pytest.mark.parametrize("body", [b"\0\xff\xff\xff\xff" + b"x" * 30_000, framed(generate([1])) * 2, b"\0"])
async def test_malformed_frames_are_refused_and_reach_no_server(world, body):
    host, _, port = world.gateway.url.removeprefix("http://").rpartition(":")
    headers = {"content-type": "application/grpc", "te": "trailers"}
    path = "/vllm.grpc.engine.VllmEngine/Generate"
    assert await post_with_trailers(host, int(port), path, body, headers) == (200, b"")  # a status of gRPC follows
    assert world.served() == [0, 0]


async def test_header_of_a_client_that_steers_sidecars_is_removed(world):
    await world.client.generate(generate([1]), metadata=(("x-kv-cache-source-host-port", "6.6.6.6:6"),))
    (metadata,) = [each for one in world.engines for each in one.metadata]
    assert "x-kv-cache-source-host-port" not in metadata
