# SPDX-License-Identifier: Apache-2.0
"""Room for requests in each cluster, as objects that a hub understands."""

import json

import pytest

from epp.framework import Endpoint, ManualClock
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.clusters import CLUSTER, ClusterStatus
from epp.framework.datalayer import Report
from epp.framework.snapshot import ACCELERATOR, KV_USAGE, REACHABLE, REFUSES, WAITING, Snapshot
from epp.kube.objects.decode import decode_object
from epp.kube.objects.ocm import AddOnPlacementScore
from epp.routing.datastore import Datastore
from epp.telemetry.pool_series import SCORES_PATH, cluster_scores
from tests.support.operator_page import asked, opened

NOW = 1767225600.0
"""2026-01-01."""


@pytest.fixture
def store():
    return Datastore(ManualClock())


def add(store: Datastore, **clusters: list[tuple[float, float]]) -> None:
    """Add endpoints: for each cluster the requests that wait, and the share of the KV cache in use, of each."""
    store.replace(
        Endpoint(f"{cluster}-{index}", f"10.0.{number}.{index + 1}", 8000, cluster=cluster.removeprefix("unnamed"))
        for number, (cluster, loads) in enumerate(clusters.items())
        for index in range(len(loads))
    )
    for cluster, loads in clusters.items():
        for index, (waiting, usage) in enumerate(loads):
            store.report(endpoint_of(store, f"{cluster}-{index}"), Report(columns={WAITING: waiting, KV_USAGE: usage}))


def endpoint_of(store: Datastore, name: str) -> Endpoint:
    return next(each for each in store.endpoints if each.name == name)


def shown(snapshot: Snapshot, **options) -> dict[str, dict[str, int]]:
    """Return the scores of each cluster by name."""
    items = cluster_scores(snapshot, "Pool/A", NOW, **options)["items"]
    return {
        each["metadata"]["namespace"]: {score["name"]: score["value"] for score in each["status"]["scores"]}
        for each in items
    }


def test_ocm_12_room_is_100_for_an_idle_cluster_and_minus_100_for_a_full_one(store):
    add(store, idle=[(0, 0.0)], full=[(5, 1.0), (9, 1.0)], half=[(0, 0.0), (5, 0.5)])
    found = shown(store.snapshot())
    assert found["idle"]["routingHeadroom"] == 100
    assert found["full"] == {
        "routingHeadroom": -100,
        "queueHeadroom": -100,
        "kvCacheHeadroom": -100,
        "endpointsAvailable": 100,
        "routingHeadroom.unknown": -100,
    }
    half = found["half"]  # room 1 and 0 by queues, 1 and 0.5 by KV caches
    assert (half["queueHeadroom"], half["kvCacheHeadroom"], half["routingHeadroom"]) == (0, 50, 0)


def test_ocm_12_what_no_endpoint_reports_is_left_out_and_those_that_do_not_answer_have_no_room(store):
    store.replace([Endpoint("a", "10.0.0.1", 8000, cluster="east")])
    assert shown(store.snapshot()) == {"east": {"endpointsAvailable": 100}}
    add(store, east=[(0, 0.0), (0, 0.0)])
    store.report(endpoint_of(store, "east-0"), Report(columns={REACHABLE: REFUSES}))
    east = shown(store.snapshot())["east"]
    assert (east["routingHeadroom"], east["endpointsAvailable"]) == (0, 0)


def test_ocm_12_local_cluster_is_named_by_its_standing_or_the_request(store):
    add(store, unnamed=[(0, 0.0)])
    assert list(shown(store.snapshot())) == ["local-cluster"]
    assert list(shown(store.snapshot(), local="here")) == ["here"]
    store.tag(store.endpoints[0], Report(attributes={CLUSTER: ClusterStatus(cluster="west")}))
    assert list(shown(store.snapshot())) == ["west"]


def test_ocm_12_each_class_of_accelerators_has_its_room(store):
    add(store, east=[(0, 0.0), (5, 0.0)])
    for endpoint, model in zip(store.endpoints, ("h100", "t4"), strict=True):
        store.tag(endpoint, Report(attributes={ACCELERATOR: AcceleratorTag(model=model)}))
    east = shown(store.snapshot())["east"]
    assert (east["routingHeadroom.h100"], east["routingHeadroom.t4"]) == (100, -100)


def test_ocm_12_objects_are_those_that_we_read_ourselves(store):
    add(store, east=[(0, 0.25)])
    listed = cluster_scores(store.snapshot(), "Pool/A", NOW)
    assert (listed["apiVersion"], listed["kind"]) == (
        "cluster.open-cluster-management.io/v1alpha1",
        "AddOnPlacementScoreList",
    )
    (item,) = json.loads(json.dumps(listed))["items"]
    found = decode_object(item)
    assert isinstance(found, AddOnPlacementScore)
    assert (found.id, found.faults, found.valid_until) == ("east/routing-pool-a", (), NOW + 120)
    assert found.scores["kvCacheHeadroom"] == 50.0


def test_ocm_12_page_has_them_at_the_path_of_an_api_server(store):
    add(store, unnamed=[(0, 0.0)])
    snapshot = store.snapshot()
    with opened(scores=lambda local: cluster_scores(snapshot, "p", NOW, local=local)) as page:
        status, _, text = asked(page, f"{SCORES_PATH}?cluster=here")
        assert (status, json.loads(text)["items"][0]["metadata"]) == (200, {"name": "routing-p", "namespace": "here"})
        text = asked(page, SCORES_PATH).body
        assert json.loads(text)["items"][0]["metadata"]["namespace"] == "local-cluster"
        assert asked(page, f"{SCORES_PATH}?cluster={'x' * 254}").status == 400
        assert SCORES_PATH.encode() in asked(page, "/apis").body
