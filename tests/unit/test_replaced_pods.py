# SPDX-License-Identifier: Apache-2.0
"""A pod that takes the place of another inherits nothing that any part of the picker learned of it."""

import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import ENDPOINT_RATES, IN_FLIGHT, Endpoint, Headers, ManualClock
from epp.framework.datalayer import Contact, PageError, Report
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import SERVED, WAITING
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor
from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.polling.conditions import Condition
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Routing, Runtime
from epp.telemetry.metrics import Metrics

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: session-id-producer}
- type: session-affinity-scorer
  parameters: {strategy: session_id, sessionIdConfig: {sources: [{attribute: session-id}]}}
- {type: session-affinity-scorer, name: by-token}
- {type: approx-prefix-cache-producer}
- {type: prefix-cache-scorer}
- {type: no-hit-lru-scorer}
- {type: endpoint-rates-producer, parameters: {minSamples: 1, minTokens: 1}}
"""
BODY = b'{"model":"m","stream":true,"prompt":"%s"}' % (b"a long prompt " * 100)
HEADERS = Headers([(":path", "/v1/completions"), ("x-session-id", "s")])
OLD = Endpoint("pod", "10.0.0.1", 8000, uid="u1", boot_id="b1")
REPLACED = [
    Endpoint("pod", "10.0.0.1", 8000, uid="u2", boot_id="b1"),
    Endpoint("pod", "10.0.0.1", 8000, uid="u1", boot_id="b2"),
    Endpoint("pod", "10.0.0.2", 8000),
    Endpoint("another", "10.0.0.1", 8000),
]
each_replacement = pytest.mark.parametrize("new", REPLACED, ids=["new pod", "new boot", "new address", "new name"])


class World:
    """A picker with one pod, without the wire."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.store.replace([OLD])
        assembly = assemble(load_text(CONFIG), Builder(Registry(), self.clock))
        self.director = Director(Runtime(self.store, self.clock), assembly.pipeline)

    def route(self) -> Routing:
        routing = self.director.route(HEADERS, BODY, None)
        assert isinstance(routing, Routing)
        return routing

    def answer(self, routing: Routing, address: str = OLD.hostport) -> dict[str, str]:
        routing.served_by(address)
        added = routing.response_started(200, Headers, event_stream=True)
        self.clock.advance(0.5)
        routing.response_piece(b"data: {}\n\n", last=False, now=self.clock.now)
        return added

    def replace_by(self, new: Endpoint) -> None:
        self.store.update([new], [OLD.id] if new.id != OLD.id else [])


def scores(routing: Routing) -> dict[str, float]:
    (profile,) = routing.result.profiles.values()
    return {trace.plugin: float(trace.scores[0]) for trace in profile.scores}


def rate(routing: Routing) -> float:
    return float(routing.request.get(ENDPOINT_RATES).prefill_tokens_per_second[0])


@pytest.fixture
def world() -> World:
    return World()


def test_is_11_pod_that_stays_is_remembered(world):
    first = world.route()
    world.answer(first)
    first.complete(Cause.NATURAL)
    second = world.route()
    assert second.request.get(PREFIX_MATCH).matched_blocks[0] > 0
    assert scores(second)["session-affinity-scorer"] == 1.0
    assert rate(second) != rate(first)


@each_replacement
def test_is_11_prefix_index_and_sessions_and_rates_and_uses_of_the_old_pod_are_gone(world, new):
    first = world.route()
    world.answer(first)
    first.complete(Cause.NATURAL)
    world.replace_by(new)
    second = world.route()
    assert second.result.targets == (new,)
    assert not second.request.get(PREFIX_MATCH).matched_blocks.any()
    assert rate(second) == rate(first)
    cold = scores(second)
    assert (cold["session-affinity-scorer"], cold["prefix-cache-scorer"]) == (0.0, 0.0)
    assert cold["no-hit-lru-scorer"] == 1.0  # never used


@each_replacement
def test_is_11_response_of_the_old_pod_teaches_nothing_of_the_new_one(world, new):
    first = world.route()
    fresh = rate(first)
    world.replace_by(new)
    world.answer(first)
    first.complete(Cause.NATURAL)
    snapshot = world.store.snapshot()
    assert [snapshot.column(column)[0] for column in (IN_FLIGHT, SERVED)] == [0.0, 0.0]
    assert first.served == OLD
    assert rate(world.route()) == fresh


@pytest.mark.parametrize(("new", "score"), list(zip(REPLACED, (1.0, 1.0, 1.0, 0.0), strict=True)))
def test_session_token_leads_to_the_endpoint_of_its_name_whichever_pod_that_is(world, new, score):
    first = world.route()
    token = world.answer(first)["x-session-token"]
    world.replace_by(new)
    headers = Headers([*HEADERS.fields(), ("x-session-token", token)])
    again = world.director.route(headers, BODY, None)
    assert scores(again)["by-token"] == score


def test_is_11_session_comes_back_to_the_old_pod_once_that_is_back(world):
    world.route().complete(Cause.NATURAL)
    world.store.replace([])
    world.store.replace([OLD])  # not ready for a while
    assert scores(world.route())["session-affinity-scorer"] == 1.0


@each_replacement
async def test_is_11_condition_of_the_old_pod_is_not_that_of_the_new_one(world, new):
    collector = Collector(world.store, [], clock=world.clock)
    await collector.start()
    collector.conditions.put(OLD, Condition(Contact.REFUSED, "it died"))
    world.replace_by(new)
    assert [(e, c.contact) for e, c in collector.conditions.all] == [(new, Contact.NOT_ASKED)]
    await collector.stop()


@each_replacement
def test_is_11_engine_recognised_on_the_old_pod_is_not_that_of_the_new_one(new):
    extractor = CoreMetricsExtractor()
    sglang, neither = b"sglang:num_queue_reqs 4\n", b"vllm:num_requests_waiting 1\nsglang:num_queue_reqs 4\n"
    assert extractor.extract(sglang, OLD).columns[WAITING] == 4.0
    assert extractor.extract(neither, OLD).columns[WAITING] == 4.0
    assert extractor.extract(neither, new).columns[WAITING] == 1.0
    with pytest.raises(PageError):
        extractor.extract(b"", new)


@each_replacement
def test_is_11_gauges_of_the_old_pod_are_gone_from_the_metrics_page(world, new):
    metrics = Metrics("pool", world.clock)
    world.store.report(OLD, Report({WAITING: 5}))
    metrics.refresh_pool(world.store.snapshot())
    world.replace_by(new)
    metrics.refresh_pool(world.store.snapshot())
    names = {"name": "pool", "model_server_endpoint": OLD.name}
    assert metrics.registry.get_sample_value("llm_d_epp_per_endpoint_queue_size", names) is None
