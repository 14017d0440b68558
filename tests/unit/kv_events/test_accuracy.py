# SPDX-License-Identifier: Apache-2.0
"""Predicted matches against the cached tokens of responses: metrics, fallback, health, decision records."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from epp.app.operators import degraded_plugins
from epp.config import Builder, assemble, load_text
from epp.explain.building import ending_of
from epp.framework import COPY_SOURCE, PREFIX_MATCH, ConfigurationError, Endpoint, Headers, ManualClock
from epp.framework.registry import Registry
from epp.pool.collectors.tagging import Tagging
from epp.pool.kv_events.accuracy import Accuracy, PredictionCheck
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Runtime
from tests.support.kv_publisher import stored
from tests.support.waiting import until

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-producer
  parameters:
    kvEventsConfig: {{podDiscoveryConfig: {{socketPort: {port}}}}}
    predictionCheck: {{window: 4, minResponses: 2, toleratedShare: 0.1, wrongShare: 0.5, recoveredShare: 0.3}}
{more}
- type: prefix-cache-scorer
  parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}
"""
PROMPT = list(range(100, 420))
"""Twenty blocks of sixteen tokens: 32 tokens, two blocks, are tolerated."""


class World:
    def __init__(self, port: int, more: str = "") -> None:
        clock = ManualClock(1000.0)
        self.assembly = assemble(load_text(CONFIG.format(port=port, more=more)), Builder(Registry(), clock))
        (self.producer,) = (each for each in self.assembly.plugins if each.name == "precise-prefix-cache-producer")
        self.store = Datastore(clock)
        self.store.replace([Endpoint("p0", "127.0.0.1", 8000)])
        self.tagging = Tagging(self.store, self.assembly.taggers)
        self.director = Director(Runtime(self.store, clock), self.assembly.pipeline)

    def ask(self, cached: int | None, *, path: str = "/v1/completions", address: str = "127.0.0.1:8000", source=""):
        """Route the prompt, and answer with so many cached tokens; None for an engine that does not say."""
        routing = self.director.route(
            Headers([(":path", path)]), json.dumps({"model": "m", "prompt": PROMPT}).encode(), None
        )
        if source:
            routing.request.put(COPY_SOURCE, source)
        routing.served_by(address)
        routing.response_started(200, Headers, event_stream=False)
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": len(PROMPT), "completion_tokens": 1, **details}
        routing.response_piece(json.dumps({"choices": [{}], "usage": usage}).encode(), last=True, now=lambda: 1001.0)
        assert routing.report() == {}
        routing.complete(Cause.NATURAL)
        return routing

    def value(self, name: str, *labels: str) -> float:
        found = {(each.metric.name, *each.labels): each.value for each in self.producer.samples}
        return found[name, *labels]

    @property
    def matched(self) -> int:
        """Tokens that the next request is expected to find in the cache."""
        return self.predicted()

    def predicted(self, path: str = "/v1/completions") -> int:
        """Return the same for a request to a path."""
        request = self.ask(None, path=path).request
        return request.get(PREFIX_MATCH.produced_by(self.producer.name)).tokens_at(0)

    @property
    def health(self):
        return degraded_plugins([self.producer])


@asynccontextmanager
async def world(publisher, more: str = ""):
    engine = publisher()
    found = World(engine.port, more)
    found.engine = engine
    tasks = [asyncio.create_task(found.tagging.follow()), asyncio.create_task(found.producer.follow(lambda _: None))]
    try:
        await engine.subscribed()
        engine.send(stored(range(1, 21), PROMPT))
        await until(lambda: found.matched == 320, "the events are applied")
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_predicted_and_reported_tokens_are_counted_and_in_the_record(publisher):
    async with world(publisher) as found:
        routing = found.ask(304)  # an engine computes at least one token
        assert found.value("prefix_check_tokens", "predicted") == 320
        assert found.value("prefix_check_tokens", "reported") == 304
        assert found.value("prefix_check_responses", "right") == 1
        ending = ending_of(routing, Cause.NATURAL)
        assert (ending.predicted_cached_tokens, ending.cached_tokens) == (320, 304)
        found.ask(100)
        assert found.value("prefix_check_responses", "wrong") == 1
        assert found.value("prefix_check_wrong_share") == 0.5


async def test_endpoint_whose_predictions_are_wrong_counts_as_empty_until_they_are_right(publisher):
    async with world(publisher) as found:
        found.ask(0)
        assert found.matched == 320  # one response is not enough
        found.ask(0)
        assert found.matched == 0
        assert found.value("prefix_check_distrusted_endpoints") == 1
        (problem,) = found.health
        assert problem["plugin"] == "precise-prefix-cache-producer"
        assert "127.0.0.1" in problem["problem"]
        found.ask(320)
        found.ask(320)
        assert found.matched == 0  # two of four are wrong
        found.ask(320)
        assert found.matched == 320
        assert not found.health


async def test_approximate_index_replaces_wrong_predictions(publisher):
    async with world(publisher, "- type: approx-prefix-cache-producer") as found:
        found.ask(0)
        found.ask(0)
        assert found.matched == 320  # of 64-token blocks: the prompt was sent there before
        assert found.value("prefix_check_distrusted_endpoints") == 1


async def test_responses_without_a_number_of_a_fallback_or_with_copied_blocks_are_not_compared(publisher):
    async with world(publisher) as found:
        for _ in range(9):
            found.ask(None)
        found.ask(0, source="10.0.0.2:8000")
        found.store.update([Endpoint("p1", "127.0.0.2", 8000)])
        found.ask(0, address="127.0.0.2:8000")
        assert found.value("prefix_check_responses", "wrong") == 0
        assert found.matched == 320
        assert ending_of(found.ask(None), Cause.NATURAL).cached_tokens is None


def accuracy(**given) -> Accuracy:
    return Accuracy(PredictionCheck(**{"window": 10, "min_responses": 1, **given}), 16)


def check(found: Accuracy, predicted: int, reported: int | None, path: str = "/v1/completions") -> bool:
    """Compare a response to a prompt of 320 tokens; return whether its blocks are to be dropped."""
    return found.check(0, path, predicted, reported, 320)


def test_missing_number_means_none_cached_where_the_engine_reports_numbers():
    found = accuracy()  # vLLM leaves out a number that is 0
    check(found, 300, None)
    check(found, 300, 300)
    check(found, 300, None, "/v1/embeddings")
    assert not found.distrusted
    for _ in range(2):
        check(found, 300, None)
    assert found.distrusted == {0}
    found.forget(0)
    assert not found.distrusted


@pytest.mark.parametrize(
    ("predicted", "reported", "is_wrong"), [(32, 0, False), (0, 320, True), (320, 283, True), (320, 288, False)]
)
def test_difference_of_two_blocks_or_a_tenth_of_the_prompt_is_right(predicted, reported, is_wrong):
    found = accuracy()
    check(found, predicted, reported)
    assert bool(found.distrusted) is is_wrong


def test_short_matches_do_not_hide_wrong_ones():
    found = accuracy(wrong_share=0.4)
    for _ in range(9):
        check(found, 0, 0)
    check(found, 0, 320)
    assert found.distrusted == {0}


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("{window: 5}", "minResponses is 20; it must be at most window, 5"),
        ("{wrongShare: 0.1}", "recoveredShare is 0.2; it must be at most wrongShare, 0.1"),
        ("{wrongShare: 2}", "wrongShare"),
    ],
)
def test_mistakes_in_parameters_are_said(check, message):
    text = CONFIG.format(port=5557, more="").replace("predictionCheck: {", f"predictionCheck: {check} #")
    with pytest.raises(ConfigurationError, match=message):
        assemble(load_text(text), Builder(Registry(), ManualClock()))


@pytest.fixture
def doubted() -> Accuracy:
    """One that doubts after a right prediction, as a gap is found, and needs two right ones to be certain again."""
    found = accuracy(min_responses=2, window=4)
    check(found, 300, 300)
    assert found.doubt(0)
    return found


def test_blocks_are_uncertain_after_a_gap_until_a_response_has_fewer_cached(doubted):
    assert not check(doubted, 0, 300)  # it had more than predicted: what is known is right
    assert check(doubted, 300, 100)
    assert not check(doubted, 300, 100)  # they were dropped already


def test_blocks_are_certain_again_after_enough_right_predictions(doubted):
    uncertain = {sample.metric.name: sample.value for sample in doubted.samples}["prefix_check_uncertain_endpoints"]
    assert uncertain == 1
    for _ in range(2):
        assert not check(doubted, 300, 300)
    assert not check(doubted, 300, 100)


@pytest.mark.parametrize("responses", [[], [None], [100]])
def test_blocks_of_an_endpoint_that_does_not_tell_or_was_wrong_are_not_kept(responses):
    found = accuracy(min_responses=2, window=4)
    for reported in responses:
        check(found, 300, reported)
    assert not found.doubt(0)


async def test_known_blocks_are_used_after_a_gap_until_a_response_contradicts_them(publisher):
    async with world(publisher) as found:
        found.ask(320)
        found.engine.send(stored([99], range(16), size=16), skip=3)
        await until(lambda: found.value("prefix_check_uncertain_endpoints") == 1, "messages are missing")
        assert found.predicted(path="/v1/completions?check=no") == 320
        found.ask(0)
        assert found.predicted(path="/v1/completions?check=no") == 0
        assert found.value("prefix_check_uncertain_endpoints") == 0
