# SPDX-License-Identifier: Apache-2.0
"""Metrics of what is watched in a cluster."""

import pytest
from prometheus_client import CollectorRegistry

from epp.framework import ManualClock
from epp.kube.cluster import Cluster
from epp.kube.objects.decode import decode_object
from epp.kube.resources import PODS
from epp.runtime.supervisor import Supervisor
from epp.telemetry.process_series import show_watches
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

PATH = "/api/v1/namespaces/llm/pods"
LABELS = {"resource": "pods", "namespace": "llm"}
NAMES = (
    *("watch_current", "watch_stale_seconds", "objects", "object_problems", "lists_total"),
    "object_versions_rejected_total",
)


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.install(PATH)
    return api


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def cluster(api, clock):
    supervisor = Supervisor()
    cluster = Cluster(api, clock=clock, supervisor=supervisor)
    yield cluster
    await cluster.close()
    await supervisor.stop()


@pytest.fixture
def registry(cluster) -> CollectorRegistry:
    registry = CollectorRegistry()
    show_watches(registry, lambda: cluster.watches)
    return registry


def shown(registry: CollectorRegistry) -> dict[str, float | None]:
    return {name: registry.get_sample_value(f"llm_d_epp_kubernetes_{name}", LABELS) for name in NAMES}


def put_pod(api: FakeApi, name: str, **spec: object) -> None:
    api.put(PATH, name, apiVersion="v1", kind="Pod", metadata={"namespace": "llm"}, spec=spec)


async def test_watch_shows_its_objects_and_those_that_are_not_in_effect(api, cluster, registry):
    put_pod(api, "good", containers=[])
    put_pod(api, "bad", containers=5)
    await cluster.watch(PODS, decode_object, namespace="llm").first_list()
    assert shown(registry) == {name: float(name != "watch_stale_seconds") for name in NAMES}


async def test_watch_that_is_lost_grows_stale(api, clock, cluster, registry):
    put_pod(api, "good", containers=[])
    await cluster.watch(PODS, decode_object, namespace="llm").first_list()
    api.is_away = True
    api.end_watches()
    await until(lambda: shown(registry)["watch_current"] == 0, "the watch is lost")
    clock.advance(42)
    assert shown(registry)["watch_stale_seconds"] == 42
    assert shown(registry)["objects"] == 1
    api.is_away = False
    await until(lambda: shown(registry)["watch_current"] == 1, "the watch is back")
    assert shown(registry)["watch_stale_seconds"] == 0


async def test_two_watches_of_one_resource_are_one_series_and_none_has_none(api, cluster, registry):
    for app in ("a", "b"):
        cluster.watch(PODS, decode_object, namespace="llm", selector={"labelSelector": f"app={app}"})
    page = [sample for metric in registry.collect() for sample in metric.samples]
    assert len({(sample.name, tuple(sample.labels.items())) for sample in page}) == len(page) == 6
    registry = CollectorRegistry()
    show_watches(registry, tuple)
    assert [metric for metric in registry.collect() if metric.samples] == []
