# SPDX-License-Identifier: Apache-2.0
"""Endpoints to which media of a request were sent before, and the score for it."""

import numpy as np
import pytest

from epp.framework import MEDIA_MATCH, MediaMatch, Request
from epp.framework.testing import candidates, run_profile
from epp.plugins.encoder_cache import MMEmbeddingsCacheParameters, MMEmbeddingsCacheProducer
from epp_scorers.affinity import MMEmbeddingsCacheParameters as ScorerParameters
from epp_scorers.affinity import MMEmbeddingsCacheScorer
from tests.support.apis import parse

POOL = candidates(waiting=[0, 0, 0])


def image(name):
    return {"type": "image_url", "image_url": {"url": f"https://a/{name}.png"}}


def about(*parts):
    content = [{"type": "text", "text": "See"}, *parts]
    body = parse("chat/completions", {"model": "m", "messages": [{"role": "user", "content": content}]})
    return Request("r", body)


def ask(producer, *parts, pool=POOL):
    request = about(*parts)
    producer.produce(request, pool)
    return request


def match_of(producer, *parts):
    found = ask(producer, *parts).get(MEDIA_MATCH)
    return found.matched.tolist(), found.total


def samples_of(producer):
    return {(one.metric.name, *one.labels): one.value for one in producer.samples}


def test_target_learns_all_media_and_equal_ones_count_once(sent_to):
    producer = MMEmbeddingsCacheProducer()
    producer.pre_request(ask(producer, image("a"), image("b"), image("a")), sent_to(POOL, 2, 0))
    assert match_of(producer, image("c"), image("b"), image("a"), image("b")) == ([0, 0, 2], 3)
    assert match_of(producer) == ([0, 0, 0], 0)


def test_least_recently_used_media_are_evicted_at_two_megabytes_each(sent_to):
    producer = MMEmbeddingsCacheProducer(MMEmbeddingsCacheParameters(cache_size_in_mb_per_server=4))
    for one in ("a", "b", "a", "c"):
        producer.pre_request(ask(producer, image(one)), sent_to(POOL, 1))
    assert match_of(producer, image("a"), image("b"), image("c")) == ([0, 2, 0], 3)
    assert match_of(producer, image("b")) == ([0, 0, 0], 1)


def test_request_that_failed_is_forgotten_and_what_was_there_before_is_not(sent_to):
    producer = MMEmbeddingsCacheProducer()
    producer.pre_request(ask(producer, image("a")), sent_to(POOL, 1))
    failed = ask(producer, image("a"), image("b"))
    producer.pre_request(failed, sent_to(POOL, 1))
    producer.request_failed(failed, sent_to(POOL, 1))
    assert match_of(producer, image("a")) == ([0, 1, 0], 1)
    assert match_of(producer, image("b")) == ([0, 0, 0], 1)


def test_endpoint_that_left_holds_nothing_and_its_series_is_gone(sent_to):
    producer = MMEmbeddingsCacheProducer()
    for _ in range(2):
        producer.pre_request(ask(producer, image("a")), sent_to(POOL, 1))
    assert samples_of(producer)["encoder_cache_hits", "e1", "image"] == 1
    producer.slots_removed([1])
    assert match_of(producer, image("a")) == ([0, 0, 0], 1)
    assert ("encoder_cache_hits", "e1", "image") not in samples_of(producer)
    assert producer.dump_state(POOL.snapshot)["totalEndpoints"] == 3


def test_queries_and_hits_count_by_modality(sent_to):
    producer = MMEmbeddingsCacheProducer()
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    producer.pre_request(ask(producer, image("a")), sent_to(POOL, 0))
    producer.pre_request(ask(producer, image("a"), audio), sent_to(POOL, 0))
    found = samples_of(producer)
    assert (found["encoder_cache_queries", "image"], found["encoder_cache_queries", "audio"]) == (2, 1)
    assert found["encoder_cache_hits", "e0", "image"] == 1
    ratios = found[("encoder_cache_hit_ratio",)]
    assert (sum(ratios.counts), ratios.total) == (2, 0.5)  # of 0/1 and 1/2


def test_hashes_of_vllm_are_the_media_whatever_their_kind_is_called():
    body = {
        "model": "m",
        "token_ids": [1, 9, 9, 2],
        "features": {
            "mm_hashes": {"image": ["h"], "made-up": ["i"], "video": [None]},
            "mm_placeholders": {
                "image": [{"offset": 1, "length": 1}],
                "made-up": [{"offset": 2, "length": 1}],
                "video": [{"offset": 3, "length": 1}],
            },
        },
    }
    hashes = parse("inference/v1/generate", body).media_hashes
    assert [kind for kind, _ in hashes] == ["image", "other"]
    assert len({digest for _, digest in hashes}) == 2


@pytest.mark.parametrize(("matched", "total", "scores"), [([0, 1, 4], 4, [0.0, 0.25, 1.0]), ([0, 0, 0], 0, [0, 0, 0])])
def test_score_is_the_share_of_the_media(matched, total, scores):
    request = Request("r")
    request.put(MEDIA_MATCH.produced_by("mine"), MediaMatch(np.array(matched, dtype=np.int32), total))
    scorer = MMEmbeddingsCacheScorer(ScorerParameters(producer_name="mine"))
    assert scorer.score(request, POOL).tolist() == scores
    assert MMEmbeddingsCacheScorer().score(request, POOL).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "declared", ["", "- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: -1}}"]
)
def test_profile_that_names_the_scorer_gets_its_producer(declared):
    config = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: mm-embeddings-cache-scorer}}
{declared}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: mm-embeddings-cache-scorer, weight: 10}}]}}]
"""
    run = run_profile(config, POOL, about(image("a")))
    assert run.scores["mm-embeddings-cache-scorer"] == {"e0": 0.0, "e1": 0.0, "e2": 0.0}
