# SPDX-License-Identifier: Apache-2.0
"""How placements chose their clusters, on the metrics port."""

import json
from pathlib import Path

import pytest

from epp.framework import ManualClock
from epp.framework.registry import Registry
from epp.telemetry.page import PLACEMENTS_PATH
from tests.support.operator_page import asked, opened

HUB = Path(__file__).parents[2] / "data" / "clusters" / "hub.yaml"
NAME = "kueue-system/llm-gpu"


@pytest.fixture
def page():
    """The page of a picker whose cluster tagger evaluates the placement of the sample."""
    parameters = {"paths": [str(HUB)], "evaluate": "always"}
    tagger = Registry().build("cluster-data-source", parameters, name="hub", clock=ManualClock())
    with opened(explanations=lambda: tagger.explanations) as page:
        yield page


def test_ocm_11_page_explains_one_placement_with_the_keys_of_the_hubs_debugger(page):
    status, _, text = asked(page, f"{PLACEMENTS_PATH}/{NAME}")
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


def test_ocm_11_page_has_all_placements_by_name_and_an_unknown_one_is_told_where(page):
    status, _, text = asked(page, PLACEMENTS_PATH)
    assert (status, list(json.loads(text))) == (200, [NAME])
    for path, said in (
        (f"{PLACEMENTS_PATH}/llm/absent", f"this placement is not evaluated here: see {PLACEMENTS_PATH}\n"),
        ("/debug", f"not found: use /metrics or /healthz or {PLACEMENTS_PATH}\n"),
    ):
        answer = asked(page, path)
        assert (answer.status, answer.body.decode()) == (404, said)
