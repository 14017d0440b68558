# SPDX-License-Identifier: Apache-2.0
"""Scorers asked over real HTTP: what they are sent, what counts of their answers, and what does not."""

import asyncio
import contextlib

import pytest
import yaml

from epp.framework import ConfigurationError, SystemClock
from epp.framework.endpoint import Endpoint
from epp.framework.registry import Registry
from epp.framework.scoring import DYNAMIC_SCORES, DynamicScore
from epp.pool.collectors.dynamic_scores.source import DynamicScoreSource

VLLM = Endpoint("vllm-a", "10.0.0.1", 8000, node="n1", cluster="east")
SECONDS = 30.0


def build(**parameters):
    registry = Registry({})
    registry.register(DynamicScoreSource)
    return registry.build("dynamic-score-source", parameters, name="scores", clock=SystemClock())


def scorer(stub, **more):
    return {"name": "power", "scoring": {"host": stub.url}, "interval": "1s", **more}


def score_of(source, endpoint=VLLM, name="power"):
    return source.tag(endpoint).attributes[DYNAMIC_SCORES].by_name.get(name)


@contextlib.asynccontextmanager
async def running(source):
    changes = []
    task = asyncio.create_task(source.follow(changes.append))
    try:
        yield changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.01)


def sample(source, name, *labels):
    return next((each.value for each in source.samples if (each.metric.name, each.labels) == (name, labels)), None)


async def test_ocm_8_series_are_posted_as_documented_and_results_joined(stub, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    query = {"host": stub.url, "query": "up; down", "range": "60s", "step": "15s", "tokenFile": str(tmp_path / "token")}
    source = build(scorers=[scorer(stub, source=query)])
    async with running(source) as changes:
        await until(lambda: score_of(source) is not None)
        assert changes
    (first, headers), (second, _) = stub.asked[:2]
    assert (first["query"], second["query"], first["step"]) == ("up", "down", "15")
    assert float(first["end"]) - float(first["start"]) == pytest.approx(60.0)
    assert headers["Authorization"] == "Bearer secret"
    body, headers = stub.posted[0]
    series = {"metric": {"node": "n1", "pod": "vllm-a"}, "values": [[1767225600, "310"], [1767225615, "305"]]}
    assert body == {"data": [series, series]}
    assert "Authorization" not in headers  # the token is for the source
    assert score_of(source) == DynamicScore(value=42.7, per_pod=True)
    assert score_of(source, Endpoint("other", "10.0.0.2", 8000)) is None


async def test_ocm_8_scorer_without_a_source_is_sent_no_data(stub):
    source = build(scorers=[scorer(stub)])
    async with running(source):
        await until(lambda: stub.posted)
    assert stub.posted[0][0] == {"data": []}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hangs", "redirects", "huge", "fails", "compressed", "drips"])
async def test_ocm_8_scorer_that_misbehaves_leaves_the_last_scores_until_they_expire(stub, mode):
    source = build(scorers=[scorer(stub)], timeout="300ms", validity="3s")
    async with running(source) as changes:
        await until(lambda: score_of(source) is not None)
        stub.mode = mode
        before = len(changes)
        await until(lambda: (sample(source, "dynamic_scorer_requests", "power", "error") or 0) > 0)
        await until(lambda: score_of(source) == DynamicScore(expired=True))
        await until(lambda: len(changes) > before)  # endpoints are told
        stub.mode = "well"
        await until(lambda: score_of(source) == DynamicScore(value=42.7, per_pod=True))


async def test_ocm_8_one_that_hangs_does_not_keep_others_waiting(stub):
    slow = {"name": "slow", "scoring": {"host": stub.url, "path": "/nowhere"}, "interval": "1s"}
    source = build(scorers=[slow, scorer(stub)])
    async with running(source):
        await until(lambda: score_of(source) is not None)
    assert score_of(source, name="slow") is None


async def test_ocm_8_health_is_active_inactive_or_unknown(stub):
    source = build(scorers=[scorer(stub)])

    def states():
        return {s: sample(source, "dynamic_scorer_health", "power", s) for s in ("Active", "Inactive", "Unknown")}

    assert states() == {"Active": 0.0, "Inactive": 0.0, "Unknown": 1.0}
    async with running(source):
        await until(lambda: states()["Active"] == 1.0)
    stub.healthy = False
    source = build(scorers=[scorer(stub)])
    async with running(source):
        await until(lambda: states()["Inactive"] == 1.0)


async def test_ocm_8_scorer_says_how_it_is_asked_and_hosts_stay(stub):
    stub.config = {
        "source": {"type": "Prometheus", "host": "http://127.0.0.1:1", "params": {"query": "watts", "range": 30}},
        "scoring": {"host": "http://127.0.0.1:1", "path": "/other", "params": {"name": "watts", "interval": 1}},
    }
    asked = scorer(stub, configURL=f"{stub.url}/config", configSyncMode="Full", source={"host": stub.url, "query": "x"})
    source = build(scorers=[asked])
    async with running(source):
        await until(lambda: score_of(source, name="watts") is not None)
    assert {query["query"] for query, _ in stub.asked} == {"watts"}


@pytest.mark.parametrize(
    "config", [{"scoring": {"params": {"interval": -1}}}, {"source": 3}, None, {"scoring": {"path": "x"}}]
)
async def test_ocm_8_impossible_configuration_of_a_scorer_is_not_used(stub, config):
    stub.config = config
    source = build(scorers=[scorer(stub, configURL=f"{stub.url}/config", configSyncMode="Full")])
    async with running(source):
        await until(lambda: score_of(source) is not None)


async def test_ocm_7_page_of_scores_is_read(stub):
    source = build(pages=[{"url": f"{stub.url}/metrics", "interval": "1s"}])
    async with running(source):
        await until(lambda: score_of(source) is not None)
    assert score_of(source) == DynamicScore(value=42.7, per_pod=True)


async def test_ocm_8_objects_are_asked_and_masked(stub, tmp_path):
    objects = tmp_path / "objects.yaml"
    spec = {
        "configURL": f"{stub.url}/config",
        "configSyncMode": "None",
        "scoring": {"host": stub.url, "path": "/scoring", "params": {"name": "power", "interval": 1}},
        "scoreDimensionFormat": "${pod}",
    }
    api = "dynamic-scoring.open-cluster-management.io/v1alpha1"
    power = {"apiVersion": api, "kind": "DynamicScorer", "metadata": {"name": "gpu-power"}, "spec": spec}
    mask = {
        "apiVersion": api,
        "kind": "DynamicScoringConfig",
        "metadata": {"name": "dynamic-scoring-config"},
        "spec": {"masks": [{"clusterName": "east", "scoreName": "power"}]},
    }
    objects.write_text(yaml.safe_dump(power))
    source = build(paths=[str(objects)])
    async with running(source):
        await until(lambda: score_of(source) is not None)
        (tmp_path / "next").write_text(yaml.safe_dump_all([power, mask]))
        (tmp_path / "next").rename(objects)
        await until(lambda: score_of(source) is None)
        assert score_of(source, Endpoint("vllm-a", "10.0.0.1", 8000, cluster="west")) is not None  # as it was


def test_ocm_8_object_that_needs_a_token_is_not_asked_without_its_secret(stub_free_objects, tmp_path):
    source = build(paths=[str(stub_free_objects)])
    assert [each for each in source.samples if each.labels[0] == "default/gpu-power"] == []
    (tmp_path / "scorer-token").mkdir()
    source = build(paths=[str(stub_free_objects)], secretsPath=str(tmp_path))
    assert sample(source, "dynamic_scorer_requests", "default/gpu-power", "ok") == 0


@pytest.fixture
def stub_free_objects(tmp_path):
    path = tmp_path / "objects.yaml"
    auth = {"tokenSecretRef": {"name": "scorer-token", "key": "token"}}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
                "kind": "DynamicScorer",
                "metadata": {"name": "gpu-power"},
                "spec": {"scoring": {"host": "http://127.0.0.1:1", "auth": auth}},
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"timeout": "0"}, "timeout"),
        ({"validity": "soon"}, "validity"),
        ({"scorers": [{"name": "a", "scoring": {"host": "scorer:80"}}]}, "host"),
        ({"scorers": [{"name": "a", "scoring": {"host": "http://u:p@scorer"}}]}, "host"),
        ({"scorers": [{"name": "a", "scoring": {"host": "http://s"}, "interval": "1ms"}]}, r"interval is 0.001"),
        ({"scorers": [{"name": "a", "scoring": {"host": "http://s"}, "configSyncMode": "Full"}]}, "belong together"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, problem):
    with pytest.raises((ConfigurationError, ValueError), match=problem):
        build(**parameters)
