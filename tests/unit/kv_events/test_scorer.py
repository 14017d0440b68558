# SPDX-License-Identifier: Apache-2.0
"""The older scorer, which is a producer too, in configurations; and warnings about parameters without effect."""

import json

import numpy as np
import pytest

from epp.config import Assembly, Builder, assemble, load_text
from epp.framework import PROMPT_TOKENS, Endpoint, ManualClock, Request, RequestBody
from epp.framework.errors import ConfigurationError
from epp.framework.registry import Registry
from epp.pool.kv_events.scorer import PrecisePrefixCacheScorer
from tests.support.kv_fleet import HASHES, PROMPT, Fleet, build, running
from tests.support.kv_publisher import stored
from tests.support.uds_tokenizer import uds_tokenizer
from tests.support.waiting import until

PRODUCER = "- {type: precise-prefix-cache-producer, name: NAME}\n"


def assembled(producers: str = "", parameters: str = "{}", previous=None) -> Assembly:
    text = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: endpoint-notification-source
{producers}- type: precise-prefix-cache-scorer
  parameters: {parameters}
dataLayer:
  injectDefaults: false
  sources: [{{pluginRef: endpoint-notification-source, extractors: [{{pluginRef: precise-prefix-cache-scorer}}]}}]
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: precise-prefix-cache-scorer}}]}}]
"""
    return assemble(load_text(text, "config"), Builder(Registry(), ManualClock(1000.0), previous=previous or {}))


def scorer_of(assembly: Assembly) -> PrecisePrefixCacheScorer:
    found = assembly.instances.by_name["precise-prefix-cache-scorer"]
    assert isinstance(found, PrecisePrefixCacheScorer)
    return found


def warnings(assembly: Assembly) -> str:
    return "; ".join(str(each) for each in assembly.warnings)


def index(**config: object) -> dict:
    """Return parameters of the index of blocks."""
    return {"indexerConfig": {"kvBlockIndexConfig": config}}


async def test_scorer_without_a_producer_scores_by_events_of_its_own(publisher):
    one = publisher()
    scorer = scorer_of(assembled(parameters=f"{{kvEventsConfig: {{podDiscoveryConfig: {{socketPort: {one.port}}}}}}}"))
    world = Fleet(one.port, [one], 1)
    world.producer, world.scorer = scorer, scorer
    world.store.replace([])
    await world.tagging.change_over([scorer])
    world.store.replace([Endpoint("p0", "127.0.0.1", 8000)])
    async with running(world):
        await one.subscribed()
        await world.tell(0, stored(HASHES[:3], PROMPT[:48]))
        assert world.scores() == [0.75]
        await world.tell(0, stored(range(1001, 2251), range(20_000)))
        await until(lambda: world.value("kv_cache_index_blocks") == 1253, "all blocks are in the index")
        assert await world.admitted_scores(range(20_000)) == [1.0]
        request, candidates = world.request()
        assert np.asarray(scorer.score(request, candidates)).tolist() == [0]  # nothing was produced


def test_scorer_is_bound_to_the_producer_declared_before():
    assembly = assembled(PRODUCER.replace("NAME", "mine"), "{speculativeIndexing: true}")
    scorer = scorer_of(assembly)
    assert [key.producer for key in scorer.reads] == ["mine"]
    assert (scorer.samples, scorer.writes) == ((), ())
    assert "the matches of 'mine' are used; the other parameters have no effect" in warnings(assembly)
    assert "is deprecated" in warnings(assembly)


def test_scorer_with_two_producers_is_refused_unless_it_names_one():
    both = PRODUCER.replace("NAME", "a") + PRODUCER.replace("NAME", "b")
    with pytest.raises(ConfigurationError, match="several producers are declared before: a, b"):
        assembled(both)
    scorer = scorer_of(assembled(both, "{prefixMatchInfoProducerName: b}"))
    assert [key.producer for key in scorer.reads] == ["b"]
    with pytest.raises(ConfigurationError, match="'c' is not a precise-prefix-cache-producer declared before"):
        assembled(both, "{prefixMatchInfoProducerName: c}")


def test_scorer_keeps_its_index_in_the_next_configuration_unless_its_producer_changes():
    first = assembled()
    previous = first.instances.by_name
    assert scorer_of(assembled(previous=previous)) is scorer_of(first)
    assert scorer_of(assembled(PRODUCER.replace("NAME", "a"), previous=previous)) is not scorer_of(first)


async def test_tokenizer_service_of_older_configurations_supplies_token_ids(publisher, tmp_path):
    one, path = publisher(), f"{tmp_path}/s"
    pool = f"tokenizersPoolConfig: {{modelName: base, uds: {{socketFile: {path}}}}}"
    events = f"kvEventsConfig: {{podDiscoveryConfig: {{socketPort: {one.port}}}}}"
    scorer = scorer_of(assembled(parameters=f"{{indexerConfig: {{{pool}}}, {events}}}"))
    world = Fleet(one.port, [one], 1)
    world.producer = scorer
    await world.tagging.change_over([scorer])
    async with uds_tokenizer(path) as service, running(world):
        await one.subscribed()
        text = "x" * 32
        await world.tell(0, stored(HASHES[:1], text.encode()[:16]))
        _, candidates = world.request()
        await until(lambda: service.loaded, "the tokenizer is loaded")

        async def admitted() -> Request | None:
            request = Request("r", RequestBody(prompt=text.encode()), target_model="m", path="/v1/completions")
            request.content = json.dumps({"prompt": text}).encode()
            await world.admit(request, candidates)
            return None if request.get(PROMPT_TOKENS).ids is None else request

        while (request := await admitted()) is None:  # the answer may be late for the first ones
            pass
        assert np.asarray(scorer.score(request, candidates)).tolist() == [0.5]
        assert [each.prompt for each in service.asked] == [text]


def test_tokenizer_service_is_not_asked_without_a_model_or_beside_a_producer():
    assert "has no effect without modelName" in warnings(
        assembled(parameters="{indexerConfig: {tokenizersPoolConfig: {}}}")
    )
    for producers, pool in (("", "{}"), (PRODUCER.replace("NAME", "mine"), "{modelName: m}")):
        scorer = scorer_of(assembled(producers, f"{{indexerConfig: {{tokenizersPoolConfig: {pool}}}}}"))
        assert not scorer.reads_content


@pytest.mark.parametrize(
    ("parameters", "warning"),
    [
        (index(inMemoryConfig={"size": 20_000_000}), "only the 10000000 most recently used blocks are kept"),
        (index(inMemoryConfig={"size": 10_000_000}), ""),
        (index(costAwareMemoryConfig={"size": "2GiB"}), "inMemoryConfig is used"),
        (index(redisConfig={"address": "redis://index:6379"}), ""),
        (index(metricsLoggingInterval=10**9), "nothing is logged"),
        ({"kvEventsConfig": {"concurrency": 8}}, "one thread receives events"),
        ({}, ""),
    ],
)
def test_parameters_without_effect_are_warned_of(parameters, warning):
    found = build(**parameters).warnings
    assert len(found) == bool(warning)
    assert warning in "".join(found)
