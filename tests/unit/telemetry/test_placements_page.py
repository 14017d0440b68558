# SPDX-License-Identifier: Apache-2.0
"""How placements chose their clusters, on the metrics port."""

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from epp.framework import ManualClock
from epp.framework.registry import Registry
from epp.pool.clusters.tagger import ClusterTagger
from epp.telemetry.page import PLACEMENTS_PATH, OperatorPage

HUB = Path(__file__).parents[2] / "data" / "clusters" / "hub.yaml"
NAME = "kueue-system/llm-gpu"


@pytest.fixture
def page():
    """The page of a picker whose cluster tagger evaluates the placement of the sample."""
    parameters = {"paths": [str(HUB)], "evaluate": "always"}
    tagger = Registry().build("cluster-data-source", parameters, name="hub", clock=ManualClock())
    assert isinstance(tagger, ClusterTagger)
    page = OperatorPage(CollectorRegistry(), dict, explanations=lambda: tagger.explanations)
    page.open("127.0.0.1", 0)
    yield page
    page.close()


def get(page: OperatorPage, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_ocm_11_page_explains_one_placement_with_the_keys_of_the_hubs_debugger(page):
    status, text = get(page, f"{PLACEMENTS_PATH}/{NAME}")
    assert status == 200
    shown = json.loads(text)
    placement = shown.pop("placement")
    assert f"{placement['metadata']['namespace']}/{placement['metadata']['name']}" == NAME
    assert placement["kind"] == "Placement"
    assert placement["spec"]["prioritizerPolicy"]["mode"] == "Exact"
    assert shown == {
        "filteredPipelineResults": [
            {"name": "Predicate", "filteredClusters": ["cluster-east"]},
            {"name": "Predicate,TaintToleration", "filteredClusters": ["cluster-east"]},
        ],
        "prioritizeResults": [
            {"name": "AddOn/resource-usage-score/gpuClusterAvailable", "weight": 3.0, "scores": {"cluster-east": 60.0}},
            {"name": "Steady", "weight": 1.0, "scores": {"cluster-east": 100.0}},
        ],
        "aggregatedScores": [{"clusterName": "cluster-east", "score": 280.0}],
    }


def test_ocm_11_page_has_all_placements_by_name(page):
    status, text = get(page, PLACEMENTS_PATH)
    assert (status, list(json.loads(text))) == (200, [NAME])


def test_ocm_11_unknown_placement_is_told_where_all_are(page):
    said = f"no such placement is evaluated here: see {PLACEMENTS_PATH} for all\n"
    assert get(page, f"{PLACEMENTS_PATH}/llm/absent") == (404, said)
    assert get(page, "/debug") == (404, f"not found: use /metrics or /healthz or {PLACEMENTS_PATH}\n")
