# SPDX-License-Identifier: Apache-2.0
"""Pools, objectives and rewrites: what is read of them, and what is refused and how."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from epp.kube.objects.base import Object
from epp.kube.objects.decode import Version, versions_in
from epp.kube.objects.inference import rewrite_faults

POOL = "inference.networking.k8s.io/v1"
CURRENT = "llm-d.ai/v1alpha2"
LEGACY = "inference.networking.x-k8s.io/v1alpha2"
POOL_SPEC = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}, {"number": 8001}]}


def read(kind: str, spec: object, api: str = CURRENT, **metadata: object) -> Version:
    document = {"apiVersion": api, "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}
    (version,) = versions_in([document])
    return version


def sound(kind: str, spec: object, api: str = CURRENT, **metadata: object) -> Object:
    version = read(kind, spec, api, **metadata)
    assert version.object is not None, version.reason
    return version.object


def rewrite(*rules: object, **spec: object) -> Version:
    return read("InferenceModelRewrite", {"poolRef": {"name": "pool"}, "rules": list(rules), **spec})


def target(model: str = "t", **more: object) -> dict:
    return {"modelRewrite": model, **more}


def exact(*models: str) -> list[dict]:
    return [{"model": {"type": "Exact", "value": model}} for model in models]


def test_pool_is_read():
    pool = sound("InferencePool", {**POOL_SPEC, "appProtocol": "kubernetes.io/h2c", "endpointPickerRef": {}}, POOL)
    assert pool.match_labels == {"app": "vllm"}
    assert pool.ports == (8000, 8001)
    assert (pool.app_protocol, pool.id) == ("kubernetes.io/h2c", "default/x")
    assert sound("InferencePool", POOL_SPEC, POOL).app_protocol == "http"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"selector": {}}, "spec.selector.matchLabels is missing: add it"),
        ({"selector": {"matchLabels": {"app": 1}}}, "spec.selector.matchLabels.app is 1: write it in quotes"),
        ({"targetPorts": []}, "spec.targetPorts has 0 ports: write 1 to 8"),
        ({"targetPorts": [{"number": n} for n in range(1, 10)]}, "spec.targetPorts has 9 ports: write 1 to 8"),
        ({"targetPorts": [{"number": 0}]}, "spec.targetPorts[0].number is 0: it must be between 1 and 65535"),
        ({"targetPorts": [{"number": 65536}]}, "spec.targetPorts[0].number is 65536: it must be between 1 and 65535"),
        ({"targetPorts": [{"number": "80"}]}, "spec.targetPorts[0].number is '80': remove the quotes"),
        (
            {"targetPorts": [{"number": 80}, {"number": 80}]},
            "spec.targetPorts[1].number is 80, which is repeated: write each port once",
        ),
        ({"appProtocol": "grpc"}, "spec.appProtocol is 'grpc': use 'http', 'kubernetes.io/h2c'"),
    ],
)
def test_pool_that_no_api_server_would_take_is_refused(changed, reason):
    assert read("InferencePool", {**POOL_SPEC, **changed}, POOL).reason == reason


@pytest.mark.parametrize(("api", "legacy"), [(CURRENT, False), (LEGACY, True)])
def test_objective_is_read_in_both_groups(api, legacy):
    found = sound("InferenceObjective", {"priority": -2, "poolRef": {"name": "a"}, "poolRefs": [{"name": "b"}]}, api)
    assert (found.priority, found.is_legacy) == (-2, legacy)
    assert [(pool.group, pool.name) for pool in found.pools] == [
        ("inference.networking.k8s.io", "a"),
        ("inference.networking.k8s.io", "b"),
    ]


@pytest.mark.parametrize("spec", [None, {}, {"priority": None, "poolRef": None}])
def test_objective_without_a_priority_has_0(spec):
    found = sound("InferenceObjective", spec)
    assert (found.priority, found.pools) == (0, ())


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"priority": "high"}, "spec.priority is 'high': write a whole number"),
        ({"priority": 2**31}, "spec.priority is 2147483648: it must be between -2147483648 and 2147483647"),
        ({"poolRef": {}}, "spec.poolRef.name is missing: add it"),
        ({"poolSelector": {}}, "spec.poolSelector is not supported: write poolRef with the name of the pool"),
    ],
)
def test_objective_with_a_wrong_value_is_refused(spec, reason):
    assert read("InferenceObjective", spec).reason == reason


def test_group_of_published_examples_is_read_with_a_note():
    version = read("InferenceModelRewrite", {"rules": []}, "inference.networking.k8s.io/v1alpha2")
    assert version.object is not None
    assert version.note == ("is read as group llm-d.ai: write llm-d.ai instead of inference.networking.k8s.io")


def test_rules_of_a_rewrite_are_read_in_their_order():
    found = rewrite(
        {"matches": exact("a", "b"), "targets": [target("c", weight=3), target("d")]}, {"targets": [target()]}
    )
    first, second = found.object.rules
    assert (first.models, [(each.model_rewrite, each.weight) for each in first.targets]) == (
        ("a", "b"),
        [("c", 3), ("d", None)],
    )
    assert (second.models, second.targets[0].model_rewrite) == ((), "t")
    assert not rewrite_faults(found.object)


@pytest.mark.parametrize(
    ("targets", "fault"),
    [
        (None, "spec.rules[0].targets is missing: add it"),
        ([], "spec.rules[0].targets is empty: list at least one entry"),
        ([{}], "spec.rules[0].targets[0].modelRewrite is missing: add it"),
        ([target("")], "spec.rules[0].targets[0].modelRewrite is empty: give a name"),
        ([target(), target(weight="1")], "spec.rules[0].targets[1].weight is '1': remove the quotes"),
        (
            [target(weight=0)],
            "spec.rules[0].targets[0].weight is 0: it must be between 1 and 1000000",
        ),
        (
            [target(weight=1_000_001)],
            "spec.rules[0].targets[0].weight is 1000001: it must be between 1 and 1000000",
        ),
    ],
)
def test_rule_with_wrong_targets_keeps_its_place_and_the_others(targets, fault):
    found = rewrite({"matches": exact("a"), "targets": targets}, {"targets": [target()]}).object
    assert [(rule.models, len(rule.targets), rule.fault) for rule in found.rules] == [(("a",), 0, fault), ((), 1, "")]
    assert list(rewrite_faults(found)) == [fault]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("all", "spec.rules[0] is 'all': write a mapping"),
        ({"matches": [{}]}, "spec.rules[0].matches[0].model is missing: add it"),
        ({"matches": [{"model": {"value": 7}}]}, "spec.rules[0].matches[0].model.value is 7: write it in quotes"),
        ({"matches": exact("")}, "spec.rules[0].matches[0].model.value is empty: give a name"),
        (
            {"matches": [{"model": {"type": "Regex", "value": ".*"}}]},
            "spec.rules[0].matches[0].model.type is 'Regex': use 'Exact'",
        ),
    ],
)
def test_rewrite_with_a_rule_for_unknown_requests_is_refused_as_a_whole(rule, reason):
    assert rewrite(rule, {"targets": [target()]}).reason == reason


def test_rewrite_without_rules_is_refused():
    assert read("InferenceModelRewrite", {}).reason == "spec.rules is missing: add it"


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("2026-03-01T10:20:30Z", datetime(2026, 3, 1, 10, 20, 30, tzinfo=UTC)),
        ("2026-03-01T10:20:30+02:00", datetime(2026, 3, 1, 10, 20, 30, tzinfo=timezone(timedelta(hours=2)))),
        ("2026-03-01 10:20:30", datetime(2026, 3, 1, 10, 20, 30, tzinfo=UTC)),
        ("yesterday", None),
        (20260301, None),
        (None, None),
    ],
)
def test_time_of_creation_is_read_if_it_can_be(written, time):
    assert sound("InferenceObjective", {}, creationTimestamp=written).metadata.created == time
