# SPDX-License-Identifier: Apache-2.0
"""Objectives and rewrites of a cluster: those of the former API group count only without the current one."""

import pytest
from fake_api import FakeApi
from structlog.testing import capture_logs
from waiting import until

from epp.framework import SystemClock
from epp.kube.cluster import Cluster
from epp.routing.director.pipeline import PoolPolicies
from epp.routing.policies import PoolIdentity
from epp.routing.policies.sources import ClusterPolicies
from epp.runtime.supervisor import Supervisor

CURRENT = "/apis/llm-d.ai/v1alpha2/namespaces/llm"
FORMER = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm"
KINDS = ("inferenceobjectives", "inferencemodelrewrites")


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def applied() -> list[PoolPolicies]:
    return []


@pytest.fixture
async def start(api, applied):
    """Follow the policies of the pool: `await start()`."""
    supervisor = Supervisor()
    cluster = Cluster(api, clock=SystemClock(), supervisor=supervisor)

    async def begin() -> ClusterPolicies:
        identity = PoolIdentity("pool", "inference.networking.k8s.io", "llm")
        policies = ClusterPolicies(cluster, identity, "llm", applied.append)
        await policies.start()
        supervisor.start("policies", policies.follow)
        return policies

    yield begin
    await cluster.close()
    await supervisor.stop()


def install(api: FakeApi, group: str) -> None:
    api.install(*(f"{group}/{kind}" for kind in KINDS))


def objective(api: FakeApi, group: str, name: str, priority: int, pool: str = "pool") -> None:
    spec = {"priority": priority, "poolRef": {"name": pool}}
    _put(api, group, "InferenceObjective", name, spec)


def rewrite(api: FakeApi, group: str, name: str, model: str, *targets: dict) -> None:
    rule = {"matches": [{"model": {"value": model}}], "targets": list(targets)}
    _put(api, group, "InferenceModelRewrite", name, {"poolRef": {"name": "pool"}, "rules": [rule]})


def _put(api: FakeApi, group: str, kind: str, name: str, spec: dict) -> None:
    api_version = group.removeprefix("/apis/").removesuffix("/namespaces/llm")
    plural = f"{kind.lower()}s"
    api.put(f"{group}/{plural}", name, apiVersion=api_version, kind=kind, metadata={"namespace": "llm"}, spec=spec)


async def test_policies_are_in_effect_once_the_start_is_over_and_follow_their_objects(api, applied, start):
    objective(api, CURRENT, "batch", -1)
    objective(api, CURRENT, "theirs", 5, pool="another")
    rewrite(api, CURRENT, "canary", "chat", {"modelRewrite": "chat-v2"})
    await start()
    assert applied[-1].priorities == {"batch": -1}
    assert applied[-1].exact["chat"].model_at(0.5) == "chat-v2"
    objective(api, CURRENT, "batch", -2)
    await until(lambda: applied[-1].priorities == {"batch": -2}, "the change is applied")
    api.delete(f"{CURRENT}/inferencemodelrewrites", "canary")
    await until(lambda: not applied[-1].exact, "the rewrite is gone")


async def test_former_group_counts_where_the_current_one_is_not_installed(api, applied, start):
    objective(api, FORMER, "batch", -1)
    rewrite(api, FORMER, "canary", "chat", {"modelRewrite": "chat-v2"})
    await start()
    assert applied[-1].priorities == {"batch": -1}
    assert "chat" in applied[-1].exact


async def test_former_group_does_not_count_beside_the_current_one(api, applied, start):
    install(api, CURRENT)
    objective(api, FORMER, "batch", -1)
    await start()
    assert applied[-1].priorities == {}


async def test_current_group_counts_as_soon_as_it_is_installed_although_it_has_no_objects(api, applied, start):
    objective(api, FORMER, "batch", -1)
    await start()
    assert applied[-1].priorities == {"batch": -1}
    install(api, CURRENT)
    await until(lambda: applied[-1].priorities == {}, "the current group counts", seconds=60)


async def test_one_kind_may_be_of_the_current_group_and_the_other_of_the_former(api, applied, start):
    objective(api, CURRENT, "batch", -1)
    rewrite(api, FORMER, "canary", "chat", {"modelRewrite": "chat-v2"})
    await start()
    assert applied[-1].priorities == {"batch": -1}
    assert "chat" in applied[-1].exact


async def test_cluster_that_has_neither_group_or_forbids_them_has_no_policies(api, applied, start):
    api.forbid(f"{CURRENT}/inferenceobjectives")
    await start()
    assert applied == [PoolPolicies()]


async def test_what_is_not_as_written_is_said_once(api, applied, start):
    rewrite(api, CURRENT, "canary", "chat", {"modelRewrite": "a", "weight": 1}, {"modelRewrite": "b"})
    with capture_logs() as logs:
        policies = await start()
        objective(api, CURRENT, "batch", -1)
        await until(lambda: applied[-1].priorities == {"batch": -1}, "the change is applied")
    (said,) = [each for each in logs if each["log_level"] == "warning"]
    assert said["reason"].startswith("InferenceModelRewrite llm/canary: spec.rules[0]: b has no weight")
    assert policies.warnings == (said["reason"],)
