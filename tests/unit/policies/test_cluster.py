# SPDX-License-Identifier: Apache-2.0
"""Policies follow the objects of a cluster; what cannot be read or used changes nothing."""

import pytest
from structlog.testing import capture_logs

from epp.framework import SystemClock
from epp.kube import watched
from epp.kube.cluster import Cluster
from epp.kube.watched import WatchState
from epp.routing.director.pipeline import PoolPolicies
from epp.routing.policies import ClusterPolicies, PoolIdentity
from epp.runtime.supervisor import Supervisor
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

CURRENT, LEGACY = (f"/apis/{group}/v1alpha2/namespaces/llm" for group in ("llm-d.ai", "inference.networking.x-k8s.io"))
REWRITES, LEGACY_REWRITES = f"{CURRENT}/inferencemodelrewrites", f"{LEGACY}/inferencemodelrewrites"
OBJECTIVES, LEGACY_OBJECTIVES = f"{CURRENT}/inferenceobjectives", f"{LEGACY}/inferenceobjectives"
NO_TARGET = "spec.rules[0].targets[0].modelRewrite is '': write the name of a model"


class World:
    """A fake API server, and the policies that are in effect."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.supervisor = Supervisor()
        self.cluster = Cluster(self.api, clock=SystemClock(), supervisor=self.supervisor)
        self.applied: list[PoolPolicies] = []
        pool = PoolIdentity("pool", "inference.networking.k8s.io", "llm")
        self.policies = ClusterPolicies(self.cluster, pool, "llm", self.applied.append)

    async def start(self) -> None:
        await self.policies.start()
        self.supervisor.start("policies", self.policies.follow)

    def rewrite(self, path: str, name: str, target: str, *, uid: str = "", pool: str = "pool", **metadata: str) -> None:
        """Write one whose only rule is for `canary`."""
        rule = {"matches": [{"model": {"value": "canary"}}], "targets": [{"modelRewrite": target}]}
        self._put(path, name, {"uid": uid or name, **metadata}, {"rules": [rule], "poolRef": {"name": pool}})

    def objective(self, path: str, name: str, priority: object) -> None:
        self._put(path, name, {}, {"priority": priority, "poolRef": {"name": "pool"}})

    def _put(self, path: str, name: str, metadata: dict[str, str], spec: dict[str, object]) -> None:
        kind = "InferenceModelRewrite" if path.endswith("rewrites") else "InferenceObjective"
        version = path.removeprefix("/apis/").partition("/namespaces")[0]
        metadata = {"name": name, "namespace": "llm", **metadata}
        self.api.put(path, name, apiVersion=version, kind=kind, metadata=metadata, spec=spec)

    @property
    def target(self) -> str:
        """The model that is asked for in place of `canary`."""
        rewrite = self.applied[-1].rewrite_of("canary")
        return "" if rewrite is None else rewrite.model_at(0.0)

    async def asks_for(self, target: str) -> None:
        await until(lambda: self.target == target, f"{target} is asked for")

    async def is_in(self, state: WatchState, path: str) -> None:
        group = path.split("/")[2]
        title = f"inferencemodelrewrites.{group} "
        watches = [each for each in self.cluster.watches if each.collection.title.startswith(title)]
        await until(lambda: [each.state for each in watches] == [state], f"rewrites of {group} are {state}")


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(watched, "_LONGEST_DELAY_OF_MISSING_SECONDS", 0.02)
    monkeypatch.setattr(watched, "_LONGEST_DELAY_SECONDS", 0.02)


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.supervisor.stop()
    await world.cluster.close()


async def test_policies_are_in_effect_once_started_and_change_with_the_objects(world):
    world.rewrite(REWRITES, "r", "blue")
    world.objective(OBJECTIVES, "batch", -1)
    await world.start()
    assert world.target == "blue"
    assert world.applied[-1].priorities == {"batch": -1}
    world.rewrite(REWRITES, "r", "green")
    await world.asks_for("green")
    world.api.delete(REWRITES, "r")
    await world.asks_for("")


async def test_changes_that_arrive_together_are_applied_once(world):
    world.api.install(REWRITES, OBJECTIVES)
    await world.start()
    await until(lambda: world.api.watches(REWRITES), "rewrites are watched")
    before = len(world.applied)
    for index in range(50):
        world.rewrite(REWRITES, f"r-{index}", "blue")
    world.rewrite(REWRITES, "a", "green")  # of equal age, the first by name
    await world.asks_for("green")
    assert len(world.applied) - before < 50


async def test_legacy_kind_counts_where_the_current_one_is_absent_each_kind_by_itself(world):
    world.rewrite(LEGACY_REWRITES, "r", "blue")
    world.objective(LEGACY_OBJECTIVES, "batch", -1)
    world.api.install(OBJECTIVES)
    await world.start()
    assert world.target == "blue"
    assert world.applied[-1].priorities == {}


async def test_current_kind_that_is_installed_later_counts_though_it_has_no_objects(world):
    world.rewrite(LEGACY_REWRITES, "r", "blue")
    await world.start()
    assert world.target == "blue"
    world.api.install(REWRITES)
    await world.asks_for("")
    del world.api.collections[REWRITES]
    world.api.end_watches()
    await world.asks_for("blue")


async def test_legacy_kind_counts_on_while_it_is_not_known_whether_the_current_one_is_installed(world):
    world.rewrite(LEGACY_REWRITES, "r", "blue")
    await world.start()
    world.api.is_away = True
    world.api.end_watches()
    await world.is_in(WatchState.STALE, REWRITES)
    world.api.forbid(REWRITES)
    world.api.is_away = False
    await world.is_in(WatchState.FORBIDDEN, REWRITES)
    await world.is_in(WatchState.CURRENT, LEGACY_REWRITES)
    world.rewrite(LEGACY_REWRITES, "r", "green")
    await until(lambda: world.target != "blue", "the change has effect")
    assert world.target == "green"
    assert {policies.rewrite_of("canary") is None for policies in world.applied} == {False}


async def test_version_with_an_invalid_rule_leaves_the_one_before_in_effect(world):
    world.rewrite(REWRITES, "r", "blue")
    await world.start()
    world.rewrite(REWRITES, "r", "")
    await until(lambda: world.policies.problems, "the problem is told")
    (problem,) = world.policies.problems
    assert (problem.object, problem.reason, problem.kept) == ("InferenceModelRewrite llm/r", NO_TARGET, 1)
    assert world.target == "blue"
    assert world.policies.warnings == ()
    world.objective(OBJECTIVES, "batch", -1)
    await until(lambda: world.applied[-1].priorities, "another change has effect")
    assert world.target == "blue"
    world.rewrite(REWRITES, "r", "green")
    await world.asks_for("green")
    assert world.policies.problems == ()


async def test_first_version_with_an_invalid_rule_keeps_requests_from_other_rules(world):
    world.rewrite(REWRITES, "a", "")
    world.rewrite(REWRITES, "b", "blue")
    await world.start()
    assert world.target == ""
    assert [(problem.reason, problem.kept) for problem in world.policies.problems] == [(NO_TARGET, 0)]
    assert len(world.policies.warnings) == 1


@pytest.mark.parametrize("change", [{"uid": "another"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
async def test_earlier_version_goes_with_its_object(world, change):
    world.rewrite(REWRITES, "r", "blue")
    await world.start()
    world.rewrite(REWRITES, "r", "", **change)
    await world.asks_for("")


async def test_invalid_rules_of_other_pools_are_none_of_this_one(world):
    world.rewrite(REWRITES, "r", "", pool="elsewhere")
    await world.start()
    assert (world.policies.problems, world.policies.warnings) == ((), ())


async def test_problems_are_at_most_a_hundred(world):
    for index in range(120):
        world.rewrite(REWRITES, f"r-{index}", "")
    await world.start()
    assert len(world.policies.problems) == 100


async def test_legacy_kind_does_not_count_beside_the_current_one_nor_where_that_is_forbidden(world):
    world.api.install(OBJECTIVES)
    world.api.forbid(REWRITES)
    world.objective(LEGACY_OBJECTIVES, "batch", -1)
    world.rewrite(LEGACY_REWRITES, "r", "blue")
    await world.start()
    assert world.applied == [PoolPolicies()]


async def test_policy_that_is_not_as_written_is_said_once(world):
    world.rewrite(REWRITES, "a", "")
    with capture_logs() as logs:
        await world.start()
        world.objective(OBJECTIVES, "batch", -1)
        await until(lambda: world.applied[-1].priorities == {"batch": -1}, "the change is applied")
    said = [each["reason"] for each in logs if each["event"] == "policy not as written"]
    assert tuple(said) == world.policies.warnings
    assert len(said) == 1
