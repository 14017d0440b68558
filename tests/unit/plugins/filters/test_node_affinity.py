# SPDX-License-Identifier: Apache-2.0
"""Endpoints kept by the labels of their nodes."""

import pytest

from epp.framework import Request
from epp.framework.snapshot import NODE_LABELS
from epp.framework.testing import candidates
from epp.plugins.filters.topology import NodeAffinityFilter
from tests.support.plugins import built

NODES = [
    {"metadata.name": "a", "zone": "z1", "gpus": "8"},
    {"metadata.name": "b", "zone": "z2", "gpus": "4", "spot": "true"},
    {"metadata.name": "c", "gpus": "many"},
]


def build(**parameters):
    return built(NodeAffinityFilter, parameters)


def kept(nodes=NODES, **parameters):
    pool = candidates(records={NODE_LABELS: nodes})
    mask = build(**parameters).filter(Request("r"), pool)
    return "".join(node.get("metadata.name", "?") for node, keep in zip(nodes, mask, strict=True) if keep)


def term(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (term("zone", "In", "z1", "z3"), "a"),
        (term("zone", "NotIn", "z1"), "bc"),
        (term("spot", "Exists"), "b"),
        (term("spot", "DoesNotExist"), "ac"),
        (term("gpus", "Gt", "4"), "a"),
        (term("gpus", "Lt", "8"), "b"),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}, "c"),
    ],
)
def test_tf_4_node_affinity_allows_and_denies(test, expected):
    assert kept(nodeSelectorTerms=[test]) == expected


def test_tf_4_one_term_is_enough_and_all_its_tests_must_hold():
    both = {
        "matchExpressions": [*term("zone", "Exists")["matchExpressions"], *term("spot", "Exists")["matchExpressions"]]
    }
    assert kept(nodeSelectorTerms=[both]) == "b"
    assert kept(nodeSelectorTerms=[both, term("zone", "DoesNotExist")]) == "bc"


def test_tf_4_node_selector_and_terms_both_count():
    assert kept(nodeSelector={"zone": "z2"}) == "b"
    assert kept(nodeSelector={"zone": "z2"}, nodeSelectorTerms=[term("gpus", "Gt", "4")]) == ""


def test_tf_4_unknown_node_is_dropped_unless_it_may_pass():
    nodes = [*NODES, {}]
    assert kept(nodes, nodeSelectorTerms=[term("spot", "DoesNotExist")]) == "ac"
    assert kept(nodes, nodeSelectorTerms=[term("spot", "DoesNotExist")], onUnknown="Pass") == "ac?"


def test_without_a_selector_it_says_that_it_selects_every_node():
    assert kept() == "abc"
    assert build().warnings == ("it selects every node: set nodeSelector or nodeSelectorTerms, or remove it",)
    assert build(nodeSelector={"a": "b"}).warnings == ()
