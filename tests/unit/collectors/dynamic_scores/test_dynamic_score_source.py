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
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.waiting import until

VLLM = Endpoint("vllm-a", "10.0.0.1", 8000, node="n1", cluster="east")


def build(**parameters):
    registry = Registry({})
    registry.register(DynamicScoreSource)
    return registry.build("dynamic-score-source", parameters, name="scores", clock=SystemClock())


def scorer(stub, **more):
    return {"name": "power", "scoring": {"host": stub.url}, "interval": "1s", **more}


def score_of(source, endpoint=VLLM, name="power"):
    return source.tag(endpoint).attributes[DYNAMIC_SCORES].by_name.get(name)


async def has_score(source, name="power"):
    await until(lambda: score_of(source, name=name) is not None, f"the scores of {name} are known")


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


def sample(source, name, *labels):
    return next((each.value for each in source.samples if (each.metric.name, each.labels) == (name, labels)), None)


async def test_ocm_8_series_are_posted_as_documented_and_results_joined(stub, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    query = {"host": stub.url, "query": "up; down", "range": "60s", "step": "15s", "tokenFile": str(tmp_path / "token")}
    source = build(scorers=[scorer(stub, source=query)])
    async with running(source) as changes:
        await has_score(source)
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
    async with running(build(scorers=[scorer(stub)])):
        await until(lambda: stub.posted, "the scorer is asked")
    assert stub.posted[0][0] == {"data": []}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hangs", "redirects", "huge", "fails", "compressed", "drips"])
async def test_ocm_8_scorer_that_misbehaves_leaves_the_last_scores_until_they_expire(stub, mode):
    timeout = "300ms" if mode in {"hangs", "drips"} else "5s"
    source = build(scorers=[scorer(stub)], timeout=timeout, validity="1500ms")
    async with running(source) as changes:
        await has_score(source)
        stub.mode = mode
        before = len(changes)
        await until(lambda: (sample(source, "dynamic_scorer_requests", "power", "error") or 0) > 0, "an error counts")
        await until(lambda: score_of(source) == DynamicScore(expired=True), "the score has expired")
        await until(lambda: len(changes) > before, "endpoints are told")
        stub.mode = "well"
        await until(lambda: score_of(source) == DynamicScore(value=42.7, per_pod=True), "there is a score again")


async def test_ocm_8_one_that_hangs_does_not_keep_others_waiting(stub):
    slow = {"name": "slow", "scoring": {"host": stub.url, "path": "/nowhere"}, "interval": "1s"}
    source = build(scorers=[slow, scorer(stub)])
    async with running(source):
        await has_score(source)
    assert score_of(source, name="slow") is None


async def test_ocm_8_health_is_active_inactive_or_unknown(stub):
    def states(source):
        return [sample(source, "dynamic_scorer_health", "power", state) for state in ("Active", "Inactive", "Unknown")]

    for stub.healthy, expected in ((True, [1, 0, 0]), (False, [0, 1, 0])):
        source = build(scorers=[scorer(stub)])
        assert states(source) == [0, 0, 1]
        async with running(source):
            await until(lambda: states(source) == expected, "health is known")  # noqa: B023  awaited


async def test_ocm_8_scorer_says_how_it_is_asked_and_hosts_stay(stub):
    stub.config = {
        "source": {"type": "Prometheus", "host": "http://127.0.0.1:1", "params": {"query": "watts", "range": 30}},
        "scoring": {"host": "http://127.0.0.1:1", "path": "/other", "params": {"name": "watts", "interval": 1}},
    }
    asked = scorer(stub, configURL=f"{stub.url}/config", configSyncMode="Full", source={"host": stub.url, "query": "x"})
    source = build(scorers=[asked])
    async with running(source):
        await has_score(source, "watts")
    assert {query["query"] for query, _ in stub.asked} == {"watts"}


@pytest.mark.parametrize(
    "config", [{"scoring": {"params": {"interval": -1}}}, {"source": 3}, None, {"scoring": {"path": "x"}}]
)
async def test_ocm_8_impossible_configuration_of_a_scorer_is_not_used(stub, config):
    stub.config = config
    source = build(scorers=[scorer(stub, configURL=f"{stub.url}/config", configSyncMode="Full")])
    async with running(source):
        await has_score(source)


async def test_ocm_7_page_of_scores_is_read(stub):
    source = build(pages=[{"url": f"{stub.url}/metrics", "interval": "1s"}])
    async with running(source):
        await has_score(source)
    assert score_of(source) == DynamicScore(value=42.7, per_pod=True)


API = "dynamic-scoring.open-cluster-management.io/v1alpha1"


async def test_ocm_8_objects_are_asked_and_masked(stub, tmp_path):
    objects = tmp_path / "objects.yaml"
    spec = {
        "configURL": f"{stub.url}/config",
        "configSyncMode": "None",
        "scoring": {"host": stub.url, "path": "/scoring", "params": {"name": "power", "interval": 1}},
        "scoreDimensionFormat": "${pod}",
    }
    power = manifest(API, "DynamicScorer", "gpu-power", spec=spec)
    masks = {"masks": [{"clusterName": "east", "scoreName": "power"}]}
    mask = manifest(API, "DynamicScoringConfig", "dynamic-scoring-config", spec=masks)
    objects.write_text(yaml.safe_dump(power))
    source = build(paths=[str(objects)])
    async with running(source):
        await has_score(source)
        replace(objects, yaml.safe_dump_all([power, mask]))
        await until(lambda: score_of(source) is None, "the score is masked")
        assert score_of(source, Endpoint("vllm-a", "10.0.0.1", 8000, cluster="west")) is not None  # as it was


def test_ocm_8_object_that_needs_a_token_is_not_asked_without_its_secret(tmp_path):
    scoring = {"host": "http://127.0.0.1:1", "auth": {"tokenSecretRef": {"name": "scorer-token", "key": "token"}}}
    objects = tmp_path / "objects.yaml"
    objects.write_text(yaml.safe_dump(manifest(API, "DynamicScorer", "gpu-power", spec={"scoring": scoring})))
    source = build(paths=[str(objects)])
    assert [each for each in source.samples if each.labels[0] == "default/gpu-power"] == []
    (remark,) = source.inputs.remarks
    assert remark == (
        "DynamicScorer default/gpu-power is not used: spec.scoring.auth needs Secret scorer-token: mount it, and set "
        "secretsPath"
    )
    (tmp_path / "scorer-token").mkdir()
    source = build(paths=[str(objects)], secretsPath=str(tmp_path))
    assert sample(source, "dynamic_scorer_requests", "default/gpu-power", "ok") == 0


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
