# SPDX-License-Identifier: Apache-2.0
"""Kinds that the picker can do without are said in one log line, in words of RBAC."""

import pytest
from structlog.testing import capture_logs

from epp.kube import cluster as cluster_module
from epp.kube.cluster import Cluster
from epp.kube.resources import NODES, Resource
from tests.support.waiting import until

CLAIMS = Resource("inference.redhat.com", ("v1alpha1",), "allocationclaims", "AllocationClaim", everywhere=True)
CLASSES = Resource("ome.io", ("v1beta1",), "acceleratorclasses", "AcceleratorClass", namespaced=False)
CLAIMS_OF_ALL = "/apis/inference.redhat.com/v1alpha1/allocationclaims"
CLAIMS_OF_OWN = "/apis/inference.redhat.com/v1alpha1/namespaces/llm/allocationclaims"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(cluster_module, "_GATHERING_SECONDS", 0.05)


def watch_all(cluster: Cluster) -> None:
    cluster.watch(NODES, dict, optional=True)
    cluster.watch(CLASSES, dict, optional=True)
    cluster.watch(CLAIMS, dict, fallback="llm", optional=True)


async def test_all_that_cannot_be_read_is_said_in_one_line(fake_api, cluster):
    fake_api.forbid("/api/v1/nodes", CLAIMS_OF_ALL)
    fake_api.install(CLAIMS_OF_OWN)
    with capture_logs() as logs:
        watch_all(cluster)
        await until(lambda: logs, "it is said")
        await until(lambda: fake_api.requests.count("/api/v1/nodes") > 2, "it is tried again and again")
    assert logs == [
        {
            "event": "optional objects not read",
            "log_level": "info",
            "forbidden": ["list nodes of group core at cluster scope"],
            "only_in_own_namespace": ["allocationclaims.inference.redhat.com in llm"],
            "not_installed": ["acceleratorclasses.ome.io"],
            "remedy": "to use them, allow list and watch, at cluster scope in a ClusterRole; no restart is needed",
        }
    ]


async def test_nothing_is_said_where_all_can_be_read(fake_api, cluster):
    fake_api.install("/api/v1/nodes", "/apis/ome.io/v1beta1/acceleratorclasses", CLAIMS_OF_ALL)
    with capture_logs() as logs:
        watch_all(cluster)
        await until(lambda: all(watch.lists for watch in cluster.watches), "all are read")
        fake_api.is_away = True
        fake_api.end_watches()
        await until(lambda: all(watch.stale_seconds for watch in cluster.watches), "the server is away")
        fake_api.is_away = False
        await until(lambda: not any(watch.stale_seconds for watch in cluster.watches), "the server is back")
    assert logs == []


async def test_rights_that_are_granted_or_taken_away_later_are_said(fake_api, cluster):
    fake_api.install("/apis/ome.io/v1beta1/acceleratorclasses", CLAIMS_OF_ALL)
    fake_api.forbid("/api/v1/nodes")
    with capture_logs() as logs:
        watch_all(cluster)
        await until(lambda: len(logs) == 1, "nodes are forbidden")
        fake_api.install("/api/v1/nodes")
        fake_api.forbidden.clear()
        await until(lambda: len(logs) == 2, "nodes are allowed")
        await until(lambda: fake_api.watches("/api/v1/nodes"), "they are watched")
        fake_api.forbid("/api/v1/nodes")
        await until(lambda: len(logs) == 3, "they are forbidden again")
    granted, taken = logs[1:]
    assert (granted["event"], granted["resources"]) == ("optional objects readable now", ["nodes"])
    assert (taken["log_level"], taken["forbidden"]) == ("warning", ["watch nodes of group core at cluster scope"])


async def test_kind_that_is_wanted_no_more_is_said_no_more(fake_api, cluster):
    with capture_logs() as logs:
        cluster.release(cluster.watch(CLASSES, dict, optional=True))
        cluster.watch(NODES, dict, optional=True)
        await until(lambda: logs, "the other one is said")
    assert [line["not_installed"] for line in logs] == [["nodes"]]
