# SPDX-License-Identifier: Apache-2.0
"""Messages between Envoy and the picker, as Envoy counts them: response bodies cost some only where they are needed."""

import pytest

from epp.extproc.settings import ResponseUsage
from epp.lab.gateway.settings import Bodies, ClusterType, FailureMode, GatewaySettings, body_modes
from tests.support.echo import CONFIG
from tests.support.stepwise import LAST, PIECE, RATES, Setup, stepwise
from tests.support.waiting import until

PIECES = 20
BUFFERED = GatewaySettings(body_mode=Bodies.BUFFERED)
SHOWN = GatewaySettings(body_mode=Bodies.BUFFERED, modes={"response_body_mode": "STREAMED"})
"""One that shows the bodies of responses and lets the picker decline."""
FIRM = GatewaySettings(modes=body_modes("BUFFERED", "STREAMED"))
"""One that lets the picker choose no mode."""
AUTO, ALWAYS, NEVER = ResponseUsage
FEWEST = 3
"""Headers and body of the request, and headers of the response."""
REWRITE = {"x-llm-d-model-name-rewrite": "other-name"}
SETTLED_RATES = RATES.replace("endpoint-rates-producer", "endpoint-rates-producer, parameters: {learn: false}")
TOKENS = CONFIG.replace("{type: queue-scorer}]", "{type: prefix-cache-affinity-filter}, {type: queue-scorer}]")


async def messages_for(setup: Setup, headers: dict[str, str] | None = None, **asked) -> int:
    """Ask once; return how many messages Envoy sent to the picker."""
    await setup.settled()
    sent, _ = await setup.messages()
    async with setup.asking(headers, **asked) as response:
        assert response.status == 200
        for number in range(asked.get("pieces", 0)):
            if number:
                setup.server.taken.release()
            assert await response.content.readuntil(b"\n\n") == PIECE
        setup.server.finish.set()
        assert (await response.read() == LAST) == ("stream" in asked)
    await setup.settled()
    return (await setup.messages())[0] - sent


async def stream_messages(setup: Setup, **headers: str) -> int:
    return await messages_for(setup, headers, stream=True, pieces=PIECES)


async def test_full_duplex_shows_every_piece(directory):
    async with stepwise(directory, GatewaySettings()) as setup:
        assert await stream_messages(setup) > PIECES
        assert setup.endings.routings[-1].usage.completion_tokens == 3


async def test_buffered_shows_no_response_however_long(directory):
    async with stepwise(directory, BUFFERED) as setup:
        assert await messages_for(setup) == FEWEST
        assert await stream_messages(setup) == FEWEST
        assert await setup.messages() == (2 * FEWEST, 2 * FEWEST)  # an answer to each
        whole, stream = setup.endings.routings
        assert whole.usage is stream.usage is None
        assert whole.first_byte_at is not None
        assert stream.first_byte_at is None  # headers come before the first token


async def test_response_of_a_rewritten_model_is_asked_for_and_its_name_put_back(directory):
    async with stepwise(directory, BUFFERED) as setup:
        assert await stream_messages(setup, **REWRITE) > PIECES  # the name in it is that of the request again
        assert setup.server.models == ["other-name"]
        _, whole = await setup.ask(REWRITE)
        assert b'"model": "m"' in whole
        assert await stream_messages(setup) == FEWEST


async def test_usage_is_asked_for_where_that_is_wanted(directory):
    async with stepwise(directory, BUFFERED, usage=ALWAYS) as setup:
        assert await stream_messages(setup) > PIECES
        await setup.ask()
        assert [routing.usage.completion_tokens for routing in setup.endings.routings] == [3, 3]
        assert all(routing.first_byte_at is not None for routing in setup.endings.routings)


@pytest.mark.parametrize(
    ("config", "needed"),
    [(RATES, True), (SETTLED_RATES, False), (TOKENS, True), (CONFIG, False)],
    ids=["times of responses", "no times, as nothing is learned", "prompts in flight", "nothing"],
)
async def test_plugins_get_the_responses_that_they_need(directory, config, needed):
    async with stepwise(directory, BUFFERED, config=config) as setup:
        assert (await stream_messages(setup) > PIECES) == needed


async def test_prompt_counts_as_in_flight_until_the_first_token_where_a_plugin_reads_that(directory):
    async with stepwise(directory, BUFFERED, config=TOKENS) as setup, setup.asking(stream=True, pieces=0) as response:
        assert response.status == 200  # the headers have come
        requests, tokens = setup.in_flight
        assert requests == 1
        assert tokens > 0
        setup.server.finish.set()
        assert await response.read() == LAST
        await setup.settled()


async def test_response_that_is_shown_is_declined_where_nobody_reads_it(directory):
    async with stepwise(directory, SHOWN) as setup:
        assert await stream_messages(setup) > PIECES  # for its usage
    async with stepwise(directory, SHOWN, usage=NEVER) as setup:
        assert await stream_messages(setup) == FEWEST
        assert await messages_for(setup) == FEWEST
        assert await stream_messages(setup, **REWRITE) > PIECES
    async with stepwise(directory, SHOWN, usage=NEVER, config=RATES) as setup:
        assert await stream_messages(setup) > PIECES


@pytest.mark.parametrize("usage", ResponseUsage)
async def test_gateway_that_does_not_let_the_picker_choose_is_served_all_the_same(directory, usage):
    async with stepwise(directory, FIRM, usage=usage) as setup:
        for _ in range(2):  # the second time it is known
            assert await stream_messages(setup) > PIECES
            assert await stream_messages(setup, **REWRITE) > PIECES
        assert {routing.status for routing in setup.endings.routings} == {200}


async def test_usage_is_not_read_in_full_duplex_where_nobody_wants_it(directory):
    async with stepwise(directory, GatewaySettings(), usage=NEVER) as setup:
        await stream_messages(setup)
        assert setup.endings.routings[-1].usage is None


async def test_open_gateway_has_the_mode_too(directory):
    settings = GatewaySettings(
        body_mode=Bodies.BUFFERED, failure_mode=FailureMode.FAIL_OPEN, cluster_type=ClusterType.OVERRIDE_HOST
    )
    async with stepwise(directory, settings) as setup:
        assert await stream_messages(setup) == FEWEST
        assert setup.endings.routings[-1].served.hostport == setup.server.address


@pytest.mark.parametrize("cluster", [ClusterType.ORIGINAL_DST, ClusterType.OVERRIDE_HOST])
async def test_body_that_envoy_does_not_buffer_is_413_and_counted_as_that(directory, cluster):
    settings = GatewaySettings(body_mode=Bodies.BUFFERED, max_body_bytes=200_000, cluster_type=cluster)
    async with stepwise(directory, settings) as setup:
        empty = len(b'{"model": "m", "prompt": ""}')
        assert (await setup.ask(prompt="p" * (200_000 - empty)))[0] == 200
        # Envoy may take a little more than its limit, as it does not measure the last piece; the picker measures all.
        for size in (200_001, 1_000_000):
            assert (await setup.ask(prompt="p" * (size - empty)))[0] == 413
        await until(lambda: len(setup.endings.refusals) == 2, "both are counted")
        assert {refusal.error.status for refusal in setup.endings.refusals} == {413}
        assert len(setup.server.models) == 1
