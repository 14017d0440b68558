# SPDX-License-Identifier: Apache-2.0
"""Endpoints of pods have the boot ID of their node, and others are told of the pods."""

import pytest
from fake_api import FakeApi
from waiting import until

from epp.framework import ManualClock, SystemClock
from epp.framework.snapshot import SERVED
from epp.kube.cluster import Cluster
from epp.kube.object_set import Delta
from epp.pool.discovery import PodDiscovery, PodTarget
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import Supervisor

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/llm/pods"


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def cluster(api):
    supervisor = Supervisor()
    cluster = Cluster(api, clock=SystemClock(), supervisor=supervisor)
    yield cluster
    await cluster.close()
    await supervisor.stop()


@pytest.fixture
def store() -> Datastore:
    return Datastore(ManualClock())


def put_pod(api: FakeApi, name: str, *, ready: bool = True, uid: str = "", node: str = "n1") -> None:
    conditions = [{"type": "Ready", "status": str(ready)}]
    api.put(
        PODS,
        name,
        apiVersion="v1",
        kind="Pod",
        metadata={"namespace": "llm", "uid": uid or f"uid-{name}", "labels": {"app": "vllm"}},
        spec={"nodeName": node, "containers": []},
        status={"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions},
    )


def put_node(api: FakeApi, name: str, boot_id: str, **labels: str) -> None:
    status = {"nodeInfo": {"bootID": boot_id}}
    api.put(NODES, name, apiVersion="v1", kind="Node", metadata={"labels": labels}, status=status)


def boot_ids(store: Datastore) -> dict[str, str]:
    return {endpoint.name: endpoint.boot_id for endpoint in store.endpoints}


def discovery_in(cluster: Cluster) -> PodDiscovery:
    return PodDiscovery(cluster, "llm", PodTarget({"app": "vllm"}, (8000,)))


def serve_one(store: Datastore) -> None:
    """Let the first endpoint have served a request, as far as the picker knows."""
    store.ledger.open(0).close()


def served(store: Datastore) -> float:
    snapshot = store.snapshot()
    return float(snapshot.column(SERVED)[snapshot.slots][0])


async def test_is_11_endpoints_have_the_boot_id_of_their_node_from_the_start(api, cluster, store):
    put_node(api, "n1", "boot-1")
    put_pod(api, "a")
    await discovery_in(cluster).start(store)
    assert boot_ids(store) == {"a-rank-0": "boot-1"}


async def test_is_11_boot_id_that_is_known_later_resets_nothing_and_another_one_does(api, cluster, store):
    api.forbid(NODES)
    put_pod(api, "a")
    await discovery_in(cluster).start(store)
    assert boot_ids(store) == {"a-rank-0": ""}
    serve_one(store)
    put_node(api, "n1", "boot-1")
    api.forbidden.clear()
    await until(lambda: boot_ids(store) == {"a-rank-0": "boot-1"}, "the boot id is known")
    assert served(store) == 1.0
    await until(lambda: api.watches(NODES), "the nodes are watched")
    put_node(api, "n1", "boot-1", zone="z1")
    put_node(api, "n2", "other")
    put_node(api, "n1", "boot-2", zone="z1")
    await until(lambda: boot_ids(store) == {"a-rank-0": "boot-2"}, "the node has booted")
    assert served(store) == 0.0


async def test_is_11_node_that_leaves_and_comes_back_after_a_boot_resets_its_endpoints(api, cluster, store):
    put_node(api, "n1", "boot-1")
    put_pod(api, "a")
    await discovery_in(cluster).start(store)
    await until(lambda: api.watches(NODES), "the nodes are watched")
    serve_one(store)
    api.delete(NODES, "n1")
    put_node(api, "n1", "boot-2")
    await until(lambda: boot_ids(store) == {"a-rank-0": "boot-2"}, "the node has booted")
    assert served(store) == 0.0


async def test_pods_are_told_ready_or_not_after_their_endpoints_changed(api, cluster, store):
    api.install(NODES)
    put_pod(api, "a")
    discovery = discovery_in(cluster)
    told: list[tuple[list[str], list[str], list[str]]] = []

    def note(delta: Delta) -> None:
        told.append((sorted(delta.changed), list(delta.removed), sorted(boot_ids(store))))

    discovery.pods.subscribe(note)
    await discovery.start(store)
    await discovery.pods.settled()
    await until(lambda: api.watches(PODS), "the pods are watched")
    put_pod(api, "b", ready=False)
    await until(lambda: len(told) == 2, "the pod is told")
    api.delete(PODS, "a")
    await until(lambda: len(told) == 3, "its end is told")
    assert told == [(["llm/a"], [], ["a-rank-0"]), (["llm/b"], [], ["a-rank-0"]), ([], ["llm/a"], [])]
    assert sorted(discovery.pods.objects) == ["llm/b"]


async def test_pods_of_another_selection_replace_those_before(api, cluster):
    api.install(NODES)
    put_pod(api, "a")
    put_pod(api, "b")
    discovery = discovery_in(cluster)
    await discovery.start(Datastore(ManualClock()))
    told: list[Delta] = []
    unsubscribe = discovery.pods.subscribe(told.append)
    discovery.pods.replace(None)
    assert (dict(told[0].changed), sorted(told[0].removed)) == ({}, ["llm/a", "llm/b"])
    assert (discovery.pods.objects, discovery.pods.problems) == ({}, ())
    unsubscribe()
    discovery.pods.replace(None)
    assert len(told) == 1
