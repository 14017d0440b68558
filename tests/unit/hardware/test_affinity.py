# SPDX-License-Identifier: Apache-2.0
"""Node terms as the cluster has them, and what people write instead."""

import pytest

from epp.hardware.classes import expression_holds, matching_term
from epp.kube.objects.base import convert
from epp.kube.objects.core import MatchExpression, NodeSelector
from epp.kube.objects.ome import affinity_problems

LABELS = {"zone": "a", "nvidia.com/gpu.memory": "40960", "word": "x"}


def test_of(key, operator, *values):
    return MatchExpression(key=key, operator=operator, values=values)


test_of.__test__ = False


def selector(*terms):
    return convert({"nodeSelectorTerms": list(terms)}, NodeSelector)


def expressions(*tests):
    return {"matchExpressions": [{"key": key, "operator": op, "values": list(values)} for key, op, *values in tests]}


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (("zone", "In", "a", "b"), True),
        (("zone", "In", "b"), False),
        (("none", "In", "a"), False),
        (("zone", "NotIn", "b"), True),
        (("zone", "NotIn", "a"), False),
        (("none", "NotIn", "a"), True),
        (("zone", "Exists"), True),
        (("none", "Exists"), False),
        (("zone", "DoesNotExist"), False),
        (("none", "DoesNotExist"), True),
        (("nvidia.com/gpu.memory", "Gt", "38000"), True),
        (("nvidia.com/gpu.memory", "Gt", "40960"), False),
        (("nvidia.com/gpu.memory", "Lt", "50000"), True),
        (("nvidia.com/gpu.memory", "Lt", "9000"), False),  # as text it would hold
        (("none", "Gt", "1"), False),
        (("word", "Gt", "1"), False),
        (("zone", "Gt"), False),
        (("zone", "Like", "a"), False),
    ],
)
def test_ome_2_all_six_operators(test, holds):
    assert expression_holds(test_of(*test), LABELS) is holds


def test_ome_2_one_term_of_which_all_expressions_hold_is_enough():
    first = expressions(("zone", "In", "b"), ("word", "Exists"))
    second = expressions(("zone", "In", "a"), ("word", "Exists"))
    assert matching_term(selector(first, second), LABELS) is not None
    assert matching_term(selector(first), LABELS) is None


def test_ome_2_terms_without_tests_hold_nowhere():
    assert matching_term(selector({}), LABELS) is None
    assert matching_term(selector(), LABELS) is None


def test_ome_2_field_of_a_node():
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert matching_term(selector(named), {}, "n1") is not None
    assert matching_term(selector(named), {}, "n2") is None
    other = {"matchFields": [{"key": "metadata.uid", "operator": "DoesNotExist"}]}
    assert matching_term(selector(other), {}, "n1") is None


@pytest.mark.parametrize(
    ("operator", "value", "holds"),
    [
        ("Gte", "40960", True),
        ("Lte", "40960", True),
        ("Gte", "40Gi", True),
        ("Gt", "40Gi", False),
        ("Lte", "24Gi", False),
    ],
)
def test_defect_26_operators_and_units_of_the_proposal_are_understood(operator, value, holds):
    # the label counts MiB: 40 Gi are 40,960 of them
    assert expression_holds(test_of("nvidia.com/gpu.memory", operator, value), LABELS) is holds


def test_defect_26_and_each_is_warned_of():
    wrong = expressions(("m", "Gte", "24Gi"), ("m", "Like", "x"), ("m", "Gt"), ("m", "Lt", "many"))
    fields = {"matchFields": [{"key": "metadata.uid", "operator": "Exists"}]}
    problems = list(affinity_problems(selector(wrong, fields)))
    assert len(problems) == 6
    assert "Gte" in problems[0]
    assert "24Gi" in problems[1]
    assert list(affinity_problems(selector(expressions(("m", "Gt", "5"), ("m", "In", "a"))))) == []
