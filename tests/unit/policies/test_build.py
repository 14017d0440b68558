# SPDX-License-Identifier: Apache-2.0
"""Objects into the policies of one pool: which objects count, and which rule is for a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kube.objects.decode import versions_in
from epp.routing.director.pipeline import PoolPolicies, Rewrite
from epp.routing.policies import BuiltPolicies, PoolIdentity, build_policies
from tests.support.kube.manifests import manifest

CURRENT = "llm-d.ai/v1alpha2"
LEGACY = "inference.networking.x-k8s.io/v1alpha2"
ANY_POOL = PoolIdentity()


def objective(name: str, priority: int | None = None, *, api: str = CURRENT, pool: object = None, **metadata) -> dict:
    spec = {"priority": priority, "poolRef": pool}
    return manifest(api, "InferenceObjective", name, metadata=metadata, spec=spec)


def rewrite(name: str, *rules: object, **metadata) -> dict:
    return manifest(CURRENT, "InferenceModelRewrite", name, metadata=metadata, spec={"rules": list(rules)})


def rule(*models: str, to: Mapping[str, int | None]) -> dict:
    return {
        "matches": [{"model": {"value": model}} for model in models],
        "targets": [{"modelRewrite": model, "weight": weight} for model, weight in to.items()],
    }


def built(*documents: object, pool: PoolIdentity = ANY_POOL) -> BuiltPolicies:
    objects = []
    for version in versions_in(documents):
        assert version.object is not None, version.reason
        objects.append(version.object)
    return build_policies(objects, pool)


def names(policies: PoolPolicies, *models: str) -> list[str]:
    """Name of the rewrite for each model; empty for none."""
    return [found.name if (found := policies.rewrite_of(model)) else "" for model in models]


@pytest.mark.parametrize(
    ("pool", "left"),
    [
        (ANY_POOL, {"a", "b", "other-group", "none", "elsewhere"}),
        (PoolIdentity("a"), {"a", "other-group", "none", "elsewhere"}),
        (PoolIdentity("a", "inference.networking.k8s.io"), {"a", "none", "elsewhere"}),
        (PoolIdentity("a", "inference.networking.k8s.io", "default"), {"a", "none"}),
        (PoolIdentity("nobody's"), {"none"}),
    ],
)
def test_objects_of_other_pools_and_namespaces_are_left_out(pool, left):
    found = built(
        objective("a", 1, pool={"name": "a"}),
        objective("b", 1, pool={"name": "b"}),
        objective("other-group", 1, pool={"name": "a", "group": "example.com"}),
        objective("none", 1),
        objective("elsewhere", 1, pool={"name": "a"}, namespace="elsewhere"),
        pool=pool,
    )
    assert set(found.policies.priorities) == left
    assert found.other_pools == 5 - len(left)


def test_object_that_is_being_deleted_is_left_out():
    found = built(objective("gone", -1, deletionTimestamp="2026-03-01T10:20:30Z"))
    assert found == BuiltPolicies(PoolPolicies())


@pytest.mark.parametrize("order", [1, -1])
def test_object_of_the_current_group_counts_before_one_of_the_legacy_group(order):
    documents = [objective("x", 1, api=LEGACY), objective("x", 2), objective("y", 3, api=LEGACY)]
    found = built(*documents[::order])
    assert found.policies.priorities == {"x": 2, "y": 3}
    assert found.warnings == ()


def test_of_two_objects_of_one_name_the_last_counts_with_a_warning():
    found = built(
        objective("x", 1),
        objective("x", 2, namespace="other"),
        rewrite("x", rule("m", to={"a": None})),
        rewrite("x", rule("m", to={"b": None})),
    )
    assert found.policies.priorities == {"x": 2}
    assert found.policies.exact["m"].models == ("b",)
    assert found.warnings == (
        "InferenceObjective x occurs more than once: the last one counts",
        "InferenceModelRewrite x occurs more than once: the last one counts",
    )


def test_target_without_a_weight_beside_weighted_ones_is_never_chosen_with_a_warning():
    found = built(rewrite("r", rule("m", to={"a": 1, "b": None, "c": 3})))
    assert (found.policies.exact["m"].models, found.policies.exact["m"].weights) == (("a", "c"), (1, 3))
    (warning,) = found.warnings
    assert warning == (
        "InferenceModelRewrite default/r: spec.rules[0]: b has no weight and others have one, so it is never chosen: "
        "give all a weight, or none"
    )


def test_requests_of_a_rule_with_a_fault_keep_their_model():
    found = built(
        rewrite("broken", rule("m", to={"a": 0}), creationTimestamp="2026-01-01T00:00:00Z"),
        rewrite("newer", rule("m", to={"b": None}), rule(to={"c": None}), creationTimestamp="2026-01-02T00:00:00Z"),
    )
    assert names(found.policies, "m", "other") == ["broken", "newer"]
    assert found.policies.exact["m"].model_at(0.5) == ""
    (warning,) = found.warnings
    assert warning == (
        "InferenceModelRewrite default/broken: spec.rules[0].targets[0].weight is 0: it must be between 1 and 1000000; "
        "until then, matching requests keep their model"
    )


@pytest.mark.parametrize(("share", "model"), [(0.0, "a"), (0.2499, "a"), (0.25, "b"), (0.9999, "b"), (1 - 2**-53, "b")])
def test_models_are_shared_out_by_their_weights(share, model):
    assert Rewrite("r", models=("a", "b"), weights=(1, 3)).model_at(share) == model


@given(weights=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=20), share=st.floats(0, 1, exclude_max=True))
def test_chosen_model_is_where_the_share_is_in_the_sum_of_weights(weights: Sequence[int], share: float):
    rewrite = Rewrite("r", models=tuple(map(str, range(len(weights)))), weights=tuple(weights))
    chosen = int(rewrite.model_at(share))
    assert sum(weights[:chosen]) <= share * sum(weights) <= sum(weights[: chosen + 1])


@dataclass(frozen=True)
class Written:
    """A rewrite as the test sees it: age in days, and the models of each rule."""

    name: str
    day: int
    rules: tuple[tuple[str, ...], ...]


MODELS = ("a", "b", "c")
REWRITES = st.lists(
    st.builds(
        Written,
        st.sampled_from("pqrstuvw"),
        st.integers(1, 3),
        st.lists(st.lists(st.sampled_from(MODELS), unique=True, max_size=2).map(tuple), max_size=3).map(tuple),
    ),
    unique_by=lambda each: each.name,
    max_size=6,
)


@given(REWRITES)
def test_rule_for_a_model_is_the_one_that_a_search_through_all_finds(rewrites: Sequence[Written]):
    documents = [
        rewrite(
            each.name,
            *(rule(*models, to={f"{each.name}{index}": None}) for index, models in enumerate(each.rules)),
            creationTimestamp=f"2026-01-0{each.day}T00:00:00Z",
        )
        for each in rewrites
    ]
    policies = built(*documents).policies
    in_order = sorted(rewrites, key=lambda each: (each.day, each.name))
    ruled = [(f"{each.name}{i}", models) for each in in_order for i, models in enumerate(each.rules)]
    for model in (*MODELS, "", "unheard-of"):
        exact = [target for target, models in ruled if model in models]
        generic = [target for target, models in ruled if not models]
        found = policies.rewrite_of(model)
        assert ([] if found is None else [found.model_at(0.0)]) == (exact or generic)[:1]


@pytest.mark.parametrize("default", ["llm-d.ai", "inference.networking.k8s.io", "inference.networking.x-k8s.io"])
def test_reference_with_the_group_that_an_api_server_fills_in_is_for_the_pool(default):
    pool = PoolIdentity("vllm", "inference.networking.k8s.io")
    ours = objective("ours", 3, pool={"name": "vllm", "group": default})
    theirs = objective("theirs", 3, pool={"name": "vllm", "group": "example.com"})
    assert built(ours, theirs, pool=pool).policies.priorities == {"ours": 3}
