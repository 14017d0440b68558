# SPDX-License-Identifier: Apache-2.0
"""Records of every ready-made configuration, on pools of any kind: what they say is consistent."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config import Builder, assemble, load_text
from epp.config.load import sample_texts
from epp.explain.building import record_of
from epp.explain.record import DecisionRecord
from epp.framework import Candidates, Headers, ManualClock, Request, RequestBody
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost
from epp.framework.errors import RequestError
from epp.framework.plugin import Guard, PluginObserver
from epp.framework.registry import Registry
from epp.framework.roles import Producer, RequestHeaders
from epp.framework.testing import candidates
from epp.routing.director import Pipeline

GUARD = Guard(PluginObserver())
TAGS = [
    AcceleratorTag(),
    AcceleratorTag(kind=AcceleratorKind.GPU, model="h100", count=1, cost=Cost(per_hour=4.0), memory_bytes=80 * 2**30),
    AcceleratorTag(kind=AcceleratorKind.GPU, model="t4", classes=("cheap",), count=2, cost=Cost(per_hour=0.5)),
]
ROLES = [{}, {"llm-d.ai/role": "prefill"}, {"llm-d.ai/role": "decode"}]
endpoints = st.lists(
    st.tuples(
        st.sampled_from([np.nan, 0.0, 3.0, 50.0]),
        st.sampled_from([np.nan, 0.0, 0.5, 1.0]),
        st.integers(0, 5),
        st.sampled_from(TAGS),
        st.sampled_from(ROLES),
        st.sampled_from([np.nan, 99.9, 10.0]),
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture(scope="module", params=sample_texts())
def pipeline(request) -> Pipeline:
    config = load_text(sample_texts()[request.param], request.param)
    return assemble(config, Builder(Registry(), ManualClock(100.0), experimental=True)).pipeline


def pool_of(drawn: list[tuple]) -> Candidates:
    waiting, kv_usage, in_flight, tags, labels, at = zip(*drawn, strict=True)
    pool = candidates(
        waiting=waiting,
        running=waiting,
        kv_usage=kv_usage,
        in_flight=in_flight,
        metrics_at=at,
        accelerators=tags,
        labels=labels,
    )
    pool.now = 100.0
    return pool


def recorded(pipeline: Pipeline, pool: Candidates) -> DecisionRecord:
    request = Request(
        "r", RequestBody(model="m", prompt=b"a secret " * 50), Headers([("x-llm-d-slo-ttft-ms", "5")]), seed=7
    )
    for hook in pipeline.of(RequestHeaders):
        GUARD.call(RequestHeaders.role, hook, hook.request_headers, request)
    for producer in pipeline.of(Producer):
        GUARD.call(Producer.role, producer, producer.produce, request, pool)
    profiles = pipeline.scheduler.profiles
    try:
        outcome = pipeline.scheduler.schedule(request, pool)
    except RequestError as error:
        return record_of(request, error, profiles, id="1", kind="refused", at=0.0)
    return record_of(request, outcome, profiles, id="1", kind="routed", at=0.0)


def check(record: DecisionRecord, size: int) -> None:
    assert (record.pick is None) == (record.failure is not None)
    assert record.why
    for run in record.profiles:
        before = run.considered
        assert before == size
        for step in run.filters:
            assert step.before == before
            assert len(step.kept) + step.kept_more == step.after
            assert len(step.dropped) + step.dropped_more == step.before - step.after
            assert all(drop.reason for drop in step.dropped)
            before = step.after
        if run.failure is None:
            assert len(run.candidates) + run.candidates_more == before
            assert run.candidates[0].rank == 0
        assert all(step.zero_means for step in run.scorers)
        for each in run.candidates:
            assert sum(each.contributions) == pytest.approx(each.total, abs=1e-4)
            for step, score, part in zip(run.scorers, each.scores, each.contributions, strict=True):
                assert 0 <= score <= 1
                assert part == pytest.approx(step.weight * score, abs=1e-4)
    if record.pick is not None:
        (primary,) = [run for run in record.profiles if run.primary]
        picked = sorted((each for each in primary.candidates if each.rank is not None), key=lambda each: each.rank or 0)
        assert [each.endpoint for each in picked] == [record.pick.endpoint, *record.pick.fallbacks]


@given(drawn=endpoints)
def test_record_of_a_ready_made_configuration_is_consistent(pipeline: Pipeline, drawn: list[tuple]):
    pool = pool_of(drawn)
    record = recorded(pipeline, pool)
    check(record, len(pool))
    data = msgspec.json.encode(record)
    assert msgspec.json.decode(data, type=DecisionRecord) == record
    assert b"secret" not in data
