# SPDX-License-Identifier: Apache-2.0
"""Two thousand requests under way while the configuration changes fifty times: none lost, none served by a mixture."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from epp.app import Picker
from epp.config import load_file
from epp.framework.headers import DESTINATION, DESTINATION_NAMESPACE, ENDPOINT_SCORES
from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.pool.discovery import StaticDiscovery
from epp.pool.discovery.targets import Target
from tests.support.config_files import picker_config, replace
from tests.support.exchanges import BODY, request_body
from tests.support.in_process import running_picker
from tests.support.serving import APART, Exchange, answer, exchange, first_message
from tests.support.waiting import until

RELOADS = 50
FINISHED_PER_RELOAD = 40
STREAMS = RELOADS * FINISHED_PER_RELOAD
CONNECTIONS = 4
POOL = [
    Target("a1", "10.0.0.1", 8000, labels={"group": "a", "tier": "gold"}),
    Target("a2", "10.0.0.2", 8000, labels={"group": "a", "tier": "silver"}),
    Target("b1", "10.0.0.3", 8000, labels={"group": "b", "tier": "gold"}),
    Target("b2", "10.0.0.4", 8000, labels={"group": "b", "tier": "silver"}),
]


def config(group: str, weight: int, picker: str) -> str:
    return picker_config(f"""
dataLayer: {{injectDefaults: false}}
plugins:
- {{type: label-selector-filter, parameters: {{matchLabels: {{group: {group}}}}}}}
- {{type: header-label-affinity-scorer, parameters: {{headerName: x-tier, labelKey: tier}}}}
- {picker}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: label-selector-filter
  - {{pluginRef: header-label-affinity-scorer, weight: {weight}}}
""")


A = config("a", 1, "{type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}")
B = config("b", 7, "{type: random-picker, parameters: {maxNumOfEndpoints: 2}}")


@dataclass(frozen=True)
class Routed:
    """What one answer shows of the configuration that made it."""

    destination: frozenset[str]
    """A's picker names one endpoint, B's two."""
    totals: dict[str, float]
    """The filter shows in the endpoints that have one, the weight in the totals."""


# Requests say `x-tier: gold`, so the scorer gives 1 for a1 and b1, and 0 for a2 and b2.
BY_A = Routed(frozenset({"10.0.0.1:8000"}), {"10.0.0.1:8000": 1.0, "10.0.0.2:8000": 0.0})
BY_B = Routed(frozenset({"10.0.0.3:8000", "10.0.0.4:8000"}), {"10.0.0.3:8000": 7.0, "10.0.0.4:8000": 0.0})


def in_effect(generation: int) -> Routed:
    """Generation 1 is A, 2 is B, and so on in turn."""
    return BY_A if generation % 2 else BY_B


@contextlib.asynccontextmanager
async def picker_following(file: Path) -> AsyncIterator[Picker]:
    followed = {"config": load_file(file), "watch_config": file, "discovery": StaticDiscovery(POOL)}
    async with running_picker(**followed, emit_endpoint_scores=True) as picker:
        yield picker


async def begin(call: Exchange, number: int) -> Exchange:
    """Send the headers and half of the body."""
    await call.write(first_message(**{"x-tier": "gold", "x-request-id": f"r-{number}"}))
    await call.write(request_body(BODY[:20], end=False))
    return call


async def complete(call: Exchange) -> Routed:
    """Send the other half of the body; return what came back."""
    await call.write(request_body(BODY[20:], end=True))
    routed = await call.read()
    assert routed.HasField("request_headers"), routed
    piece = (await call.read()).request_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (BODY, True)
    metadata = routed.dynamic_metadata[DESTINATION_NAMESPACE]
    return Routed(frozenset(metadata[DESTINATION].split(",")), dict(metadata[ENDPOINT_SCORES]))


@dataclass
class Newcomers:
    """One request after the other, begun and ended while configurations change."""

    picker: Picker
    channel: grpc.aio.Channel
    count: int = 0

    async def come(self) -> None:
        while True:
            call = exchange(self.channel)
            try:
                await begin(call, STREAMS + self.count)
                before = self.picker.config.generation
                routed = await complete(call)
                after = self.picker.config.generation
                assert routed in [in_effect(generation) for generation in range(before, after + 1)]
                await answer(call)
            finally:
                call.cancel()  # one that was cut off here would stay open until it is collected
            self.count += 1


@contextlib.asynccontextmanager
async def coming(newcomers: Newcomers) -> AsyncIterator[None]:
    """Let them come until the block ends; fails where one of them did."""
    task = asyncio.create_task(newcomers.come())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.slow
@pytest.mark.timeout(120)  # fifty times 100 ms in which changes of the file are gathered, and 2,000 streams
async def test_requests_under_way_survive_fifty_reloads_each_served_by_one_whole_configuration(tmp_path):
    file = tmp_path / "config.yaml"
    replace(file, A)
    async with picker_following(file) as picker, contextlib.AsyncExitStack() as stack:
        address = f"127.0.0.1:{picker.port}"
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=APART))
            for _ in range(CONNECTIONS)
        ]

        def in_flight() -> float:
            return float(sum(picker.store.snapshot().column(IN_FLIGHT)))

        begun = (begin(exchange(channels[number % CONNECTIONS]), number) for number in range(STREAMS))
        waiting = list(await asyncio.gather(*begun))
        await until(lambda: picker.open_streams == STREAMS, "all requests have arrived, and none is whole")
        routed: list[Exchange] = []
        newcomers = Newcomers(picker, channels[0])
        async with coming(newcomers):
            for generation in range(2, RELOADS + 2):
                replace(file, A if generation % 2 else B)
                await until(lambda g=generation: picker.config.generation == g, f"configuration {generation} is there")

                finishing, waiting = waiting[:FINISHED_PER_RELOAD], waiting[FINISHED_PER_RELOAD:]
                answers = await asyncio.gather(*map(complete, finishing))
                assert answers == [in_effect(generation)] * FINISHED_PER_RELOAD
                await asyncio.gather(*map(answer, routed))  # routed by the configuration before
                assert FINISHED_PER_RELOAD <= in_flight() <= FINISHED_PER_RELOAD + 1  # and perhaps a newcomer
                routed = finishing
            await asyncio.gather(*map(answer, routed))
        assert waiting == []
        assert newcomers.count > 0
        await until(lambda: in_flight() == 0, "nothing is in flight")
        served = sum(picker.store.snapshot().column(SERVED))
        assert served - (STREAMS + newcomers.count) in {0, 1}  # one newcomer may have been cut off
