# SPDX-License-Identifier: Apache-2.0
"""Policies follow the objects of a cluster; what cannot be read or used changes nothing."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from epp.framework import SystemClock
from epp.framework.cluster_objects import ObjectKind
from epp.framework.plugin_status import InputProblem
from epp.kube import watched
from epp.kube.cluster import Cluster
from epp.kube.objects.decode import decode_object
from epp.kube.readers import ObjectStream, ReadingTask
from epp.kube.resources import resource_of
from epp.kube.watched import WatchState
from epp.routing.director.pipeline import PoolPolicies
from epp.routing.policies import Policies, PoolIdentity
from epp.runtime.supervisor import Supervisor
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

CURRENT, LEGACY = (f"/apis/{group}/v1alpha2/namespaces/llm" for group in ("llm-d.ai", "inference.networking.x-k8s.io"))
REWRITES, LEGACY_REWRITES = f"{CURRENT}/inferencemodelrewrites", f"{LEGACY}/inferencemodelrewrites"
OBJECTIVES, LEGACY_OBJECTIVES = f"{CURRENT}/inferenceobjectives", f"{LEGACY}/inferenceobjectives"
NO_TARGET = "spec.rules[0].targets[0].modelRewrite is empty: give a name"


class World:
    """A fake API server, and the policies that are in effect."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.supervisor = Supervisor()
        self.cluster = Cluster(self.api, clock=SystemClock(), supervisor=self.supervisor)
        self.applied: list[PoolPolicies] = []
        pool = PoolIdentity("pool", "inference.networking.k8s.io", "llm")
        self.policies = Policies(pool, name="kubernetes")

    async def start(self) -> None:
        def watch(kind: ObjectKind) -> tuple[ObjectStream, Callable[[], None]]:
            watched = self.cluster.watch(resource_of(kind), decode_object, namespace="llm")
            return watched, lambda: self.cluster.release(watched)

        reading = ReadingTask(self.policies, watch, lambda *_: self.applied.append(self.policies.policies))
        reading.read(self.policies.kinds)
        self.supervisor.start("policies", lambda: reading.run(None))
        await reading.reported.wait()

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

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        return self.policies.inputs.problems

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.policies.inputs.remarks

    async def asks_for(self, target: str) -> None:
        await until(lambda: self.target == target, f"{target} is asked for")

    async def is_in(self, state: WatchState, path: str) -> None:
        group = path.split("/")[2]

        def states() -> list[WatchState]:
            title = f"inferencemodelrewrites.{group} "
            return [each.state for each in self.cluster.watches if each.collection.title.startswith(title)]

        await until(lambda: states() == [state], f"rewrites of {group} are {state}")


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


async def test_start_waits_until_the_api_server_has_listed_the_objects(world):
    world.rewrite(REWRITES, "r", "blue")
    world.api.is_away = True
    starting = asyncio.create_task(world.start())
    await world.is_in(WatchState.STALE, REWRITES)
    assert world.applied == []
    world.api.is_away = False
    await starting
    assert world.target == "blue"


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


async def test_legacy_object_counts_where_no_current_one_has_its_name(world):
    world.rewrite(LEGACY_REWRITES, "r", "blue")
    world.objective(LEGACY_OBJECTIVES, "batch", -1)
    world.objective(LEGACY_OBJECTIVES, "chat", 1)
    world.objective(OBJECTIVES, "batch", -2)
    await world.start()
    assert world.target == "blue"
    assert world.applied[-1].priorities == {"batch": -2, "chat": 1}
    world.rewrite(REWRITES, "r", "green")
    await world.asks_for("green")
    world.api.delete(REWRITES, "r")
    await world.asks_for("blue")


async def test_legacy_object_counts_where_the_current_kind_is_forbidden(world):
    world.api.forbid(REWRITES)
    world.rewrite(LEGACY_REWRITES, "r", "blue")
    await world.start()
    assert world.target == "blue"


async def test_version_with_an_invalid_rule_leaves_the_one_before_in_effect(world):
    world.rewrite(REWRITES, "r", "blue")
    await world.start()
    world.rewrite(REWRITES, "r", "")
    await until(lambda: world.problems, "the problem is told")
    (problem,) = world.problems
    assert (problem.object, problem.reason, problem.kept) == ("InferenceModelRewrite llm/r", NO_TARGET, 1)
    assert world.target == "blue"
    assert world.remarks == ()
    world.objective(OBJECTIVES, "batch", -1)
    await until(lambda: world.applied[-1].priorities, "another change has effect")
    assert world.target == "blue"
    world.rewrite(REWRITES, "r", "green")
    await world.asks_for("green")
    assert world.problems == ()


async def test_first_version_with_an_invalid_rule_keeps_requests_from_other_rules(world):
    world.rewrite(REWRITES, "a", "")
    world.rewrite(REWRITES, "b", "blue")
    await world.start()
    assert world.target == ""
    assert [(problem.reason, problem.kept) for problem in world.problems] == [(NO_TARGET, 0)]
    assert len(world.remarks) == 1


@pytest.mark.parametrize("change", [{"uid": "another"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
async def test_earlier_version_goes_with_its_object(world, change):
    world.rewrite(REWRITES, "r", "blue")
    await world.start()
    world.rewrite(REWRITES, "r", "", **change)
    await world.asks_for("")


async def test_invalid_rules_of_other_pools_are_none_of_this_one(world):
    world.rewrite(REWRITES, "r", "", pool="elsewhere")
    await world.start()
    assert (world.problems, world.remarks) == ((), ())


async def test_problems_are_at_most_a_hundred(world):
    for index in range(120):
        world.rewrite(REWRITES, f"r-{index}", "")
    await world.start()
    assert len(world.problems) == 100


async def test_policy_that_is_not_as_written_is_said_once(world):
    world.rewrite(REWRITES, "a", "")
    with capture_logs() as logs:
        await world.start()
        world.objective(OBJECTIVES, "batch", -1)
        await until(lambda: world.applied[-1].priorities == {"batch": -1}, "the change is applied")
    said = [each["problem"] for each in logs if each["event"] == "object problem"]
    assert tuple(said) == world.remarks
    assert len(said) == 1
