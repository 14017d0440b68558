# SPDX-License-Identifier: Apache-2.0
"""Policies from files: which objects are read, and what stays in effect."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, ManualClock
from epp.routing.policies import Policies, policies_in_files
from tests.support.config_files import replace
from tests.support.kube import manifests
from tests.support.kube.manifests import manifest

CURRENT = "llm-d.ai/v1alpha2"


def objective(name: str, priority: object, pool: str = "pool") -> dict:
    spec = {"priority": priority, "poolRef": {"name": pool}}
    return manifest(CURRENT, "InferenceObjective", name, spec=spec)


def rewrite(name: str, *targets: Mapping[str, int | None]) -> dict:
    """A rewrite with a rule for each mapping: for the model `m0`, `m1` and so on, the weights of others."""
    rules = [manifests.rule(f"m{index}", **each) for index, each in enumerate(targets)]
    return manifests.rewrite(name, pool="pool", rules=rules)


class World:
    """A directory with a file, and what follows it."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "policies.yaml"
        self.clock = ManualClock()

    def write(self, *documents: object) -> None:
        replace(self.file, yaml.safe_dump_all(documents))

    def start(self, *documents: object, pool_name: str = "") -> Policies:
        self.write(*documents)
        return policies_in_files([str(self.file.parent)], self.clock, pool_name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def problems(files: Policies) -> dict[str, str]:
    return {problem.object: f"{problem.reason} (kept {problem.kept})" for problem in files.inputs.problems}


def test_objects_of_other_kinds_are_ignored_even_if_they_are_broken(world):
    pool = manifest("inference.networking.k8s.io/v1", "InferencePool", "p")
    node = manifest("v2", "Node", "n")
    files = world.start(objective("batch", -1), pool, node, {"apiVersion": "apps/v1", "kind": "Deployment"})
    assert files.policies.priorities == {"batch": -1}
    assert problems(files) == {}


@pytest.mark.parametrize(("pool_name", "names"), [("", {"a", "b"}), ("mine", {"a"})])
def test_objects_of_other_pools_are_left_out_where_the_pool_has_a_name(world, pool_name, names):
    with capture_logs() as logs:
        files = world.start(objective("a", 1, pool="mine"), objective("b", 1, pool="other"), pool_name=pool_name)
    assert set(files.policies.priorities) == names
    assert [log["for_other_pools"] for log in logs if log["event"] == "policies updated"] == [2 - len(names)]


async def test_new_version_of_a_file_is_in_effect_after_a_look(world):
    files = world.start(objective("x", 1))
    world.write(objective("x", 2), rewrite("r", {"t": None}))
    assert await files.check()
    assert files.policies.priorities == {"x": 2}
    assert files.policies.exact["m0"].models == ("t",)
    assert not await files.check()


async def test_invalid_version_of_an_object_leaves_the_one_before(world):
    files = world.start(objective("x", 1), objective("y", 1), rewrite("r", {"a": None}, {"b": None}))
    world.write(objective("x", "high"), objective("y", 2), rewrite("r", {"c": None}, {"d": 0}))
    assert await files.check()
    assert files.policies.priorities == {"x": 1, "y": 2}
    assert [files.policies.exact[model].models for model in ("m0", "m1")] == [("a",), ("b",)]
    weight = "spec.rules[1].targets[0].weight is 0: it must be between 1 and 1000000"
    assert problems(files) == {
        "InferenceObjective x": "spec.priority is 'high': write a whole number (kept 1)",
        "InferenceModelRewrite r": f"{weight} (kept 1)",
    }


async def test_objective_with_an_invalid_annotation_stays_as_it_was(world):
    files = world.start(objective("x", 1))
    annotated = objective("x", 2)
    annotated["metadata"]["annotations"] = {"ome.io/cost-threshold": "cheap"}
    world.write(annotated)
    assert await files.check()
    assert files.policies.priorities == {"x": 1}
    reason = "metadata.annotations[ome.io/cost-threshold] is 'cheap': write US dollars an hour, such as 0.5"
    assert problems(files) == {"InferenceObjective x": f"{reason} (kept 1)"}


def test_of_a_rewrite_with_an_invalid_rule_and_no_version_before_the_other_rules_are_in_effect(world):
    with capture_logs() as logs:
        files = world.start(rewrite("r", {"a": 0}, {"b": None}))
    assert [files.policies.exact[model].models for model in ("m0", "m1")] == [(), ("b",)]
    fault = "spec.rules[0].targets[0].weight is 0: it must be between 1 and 1000000"
    assert problems(files) == {"InferenceModelRewrite default/r": f"{fault} (kept 0)"}
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert (warning["plugin"], warning["problem"]) == (
        "--objects",
        f"InferenceModelRewrite default/r: {fault}; until then, matching requests keep their model",
    )


def test_policy_of_the_group_of_published_examples_has_a_remark(world):
    policy = {**objective("batch", -1), "apiVersion": "inference.networking.k8s.io/v1alpha2"}
    files = world.start(policy)
    assert files.policies.priorities == {"batch": -1}
    (remark,) = files.inputs.remarks
    assert remark.endswith("is read as group llm-d.ai: write llm-d.ai instead of inference.networking.k8s.io")


def test_path_where_there_is_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="--objects: there is neither file nor directory"):
        policies_in_files([str(tmp_path / "nothing")], ManualClock())
