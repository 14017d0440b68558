# SPDX-License-Identifier: Apache-2.0
"""The pods of an InferencePool and their nodes: after changes in any order, endpoints are those of the pool."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.framework.endpoint import LabelSelector
from epp.framework.snapshot import SERVED
from epp.kube.collection import Delta
from epp.pool.discovery import PodDiscovery, PodTarget, PoolName
from tests.support.kube.pool_place import NODES, PODS, POOLS, Place
from tests.support.waiting import until


@pytest.fixture
async def place():
    place = Place()
    yield place
    await place.close()


async def test_pool_that_is_not_there_has_no_endpoints_until_it_comes_and_after_it_goes(place):
    place.pod("a")
    with capture_logs() as logs:
        await place.start()
    assert place.endpoints == set()
    assert {"event": "no endpoints, since there is no InferencePool", "pool": "llm/pool", "log_level": "info"} in logs
    place.pool(8000)
    await place.has(("a-rank-0", 8000))
    place.api.delete(POOLS, "pool")
    await place.has()
    place.pool(8000)
    await place.has(("a-rank-0", 8000))


async def test_former_pods_stay_until_those_that_are_wanted_now_are_known(place):
    place.pod("a")
    place.pod("b", app="other")
    place.pool(8000)
    await place.start()
    place.api.forbid(PODS)
    place.pool(8000, app="other")
    await until(lambda: place.api.requests.count(PODS) >= 3, "the others are asked for, in vain")
    assert place.endpoints == {("a-rank-0", 8000)}
    place.api.forbidden.clear()
    await place.has(("b-rank-0", 8000))


async def test_watch_of_pods_that_are_not_wanted_any_more_is_ended(place):
    place.pod("a")
    place.pool(8000)
    await place.start()
    for app in ("other", "third", "vllm"):
        place.pool(8000, app=app)
        await until(lambda app=app: str(place.discovery.target.labels) == f"app={app}", "the pool is read")
        await until(
            lambda: sum(watch.collection.title == "pods in llm" for watch in place.cluster.watches) == 1, "one watch"
        )


async def test_pods_without_a_pool_are_those_with_the_labels(place):
    place.pod("a")
    discovery = PodDiscovery(place.cluster, "llm", PodTarget(LabelSelector.of({"app": "vllm"}), (9000,)))
    await discovery.start(place.store)
    assert place.endpoints == {("a-rank-0", 9000)}
    assert discovery.target == PodTarget(LabelSelector.of({"app": "vllm"}), (9000,))


@pytest.mark.parametrize(("ports", "annotations"), [(range(1, 10), {}), ((9000,), {"ome.io/cost-threshold": "cheap"})])
async def test_invalid_pool_stays_as_it_was(place, ports, annotations):
    place.pod("a")
    place.pool(8000)
    await place.start()
    await until(lambda: place.api.watches(POOLS), "the pool is watched")
    with capture_logs() as logs:
        place.pool(*ports, **annotations)
        await until(lambda: any(each["event"] == "object not in effect" for each in logs), "the mistake is said")
    assert place.endpoints == {("a-rank-0", 8000)}


async def test_pool_may_be_of_another_group(place):
    place.pod("a")
    place.api.put(
        "/apis/example.com/v1/namespaces/llm/inferencepools",
        "pool",
        apiVersion="example.com/v1",
        kind="InferencePool",
        metadata={"namespace": "llm"},
        spec={"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]},
    )
    discovery = PodDiscovery(place.cluster, "llm", PoolName("pool", "llm", "example.com"))
    await discovery.start(place.store)
    assert place.endpoints == {("a-rank-0", 8000)}


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from("abc"), st.booleans(), st.integers(1, 2)),
        st.tuples(st.just("delete"), st.sampled_from("abc")),
        st.tuples(st.just("pool"), st.sampled_from([(8000,), (8001, 8000), (8000, 8001, 8002)])),
        st.tuples(st.just("no pool")),
        st.tuples(st.just("end watches")),
        st.tuples(st.just("wait")),
    ),
    max_size=25,
)


@given(CHANGES)
@example([("pod", "a", True, 1), ("end watches",), ("pod", "a", True, 2)])
def test_any_sequence_of_changes_ends_in_the_endpoints_of_the_pool_as_it_is(changes):
    asyncio.run(_follow(changes))


async def _follow(changes) -> None:
    place = Place()
    pods: dict[str, bool] = {}
    ports: tuple[int, ...] | None = (8000,)
    place.pool(8000)
    try:
        await place.start()
        for change in changes:
            match change:
                case ("pod", name, ready, number):
                    place.pod(name, ready=ready, uid=f"{name}-{number}")
                    pods[name] = ready
                case ("delete", name) if name in pods:
                    place.api.delete(PODS, name)
                    del pods[name]
                case ("pool", wanted):
                    place.pool(*wanted)
                    ports = wanted
                case ("no pool",) if ports is not None:
                    place.api.delete(POOLS, "pool")
                    ports = None
                case ("end watches",):
                    place.api.end_watches()
                case ("wait",):
                    await asyncio.sleep(0)
        ready = [name for name, is_ready in pods.items() if is_ready]
        await place.has(*((f"{name}-rank-{rank}", port) for name in ready for rank, port in enumerate(ports or ())))
        uids = {item["metadata"]["uid"] for item in place.api.collections[PODS].values()}
        await until(lambda: {each.uid for each in place.store.endpoints} <= uids, "those of replaced pods are gone")
    finally:
        await place.close()


def serve_one(place: Place) -> None:
    """Let the first endpoint have served a request, as far as the picker knows."""
    place.store.ledger.open(0).close()


def served(place: Place) -> float:
    snapshot = place.store.snapshot()
    return float(snapshot.column(SERVED)[snapshot.slots][0])


async def test_is_11_node_that_leaves_and_comes_back_after_a_boot_resets_its_endpoints(place):
    place.pool(8000, 8001)
    place.node("n1", "boot-1")
    place.pod("a")
    place.pod("b", ready=False)
    await place.start()
    assert place.endpoints == {("a-rank-0", 8000), ("a-rank-1", 8001)}
    assert place.boot_ids == {"a-rank-0": "boot-1", "a-rank-1": "boot-1"}
    await until(lambda: place.api.watches(NODES), "the nodes are watched")
    serve_one(place)
    place.api.delete(NODES, "n1")
    place.node("n1", "boot-2")
    await until(lambda: set(place.boot_ids.values()) == {"boot-2"}, "the node has booted")
    assert served(place) == 0.0


async def test_is_11_boot_id_that_is_known_later_resets_nothing_and_another_one_does(place):
    place.pool(8000)
    place.api.forbid(NODES)
    place.pod("a")
    await place.start()
    assert place.boot_ids == {"a-rank-0": ""}
    serve_one(place)
    place.node("n1", "boot-1")
    place.api.forbidden.clear()
    await until(lambda: place.boot_ids == {"a-rank-0": "boot-1"}, "the boot id is known")
    assert served(place) == 1.0
    await until(lambda: place.api.watches(NODES), "the nodes are watched")
    place.node("n1", "boot-1", zone="z1")
    place.node("n2", "other")
    place.node("n1", "boot-2", zone="z1")
    await until(lambda: place.boot_ids == {"a-rank-0": "boot-2"}, "the node has booted")
    assert served(place) == 0.0


async def test_pods_are_told_ready_or_not_after_their_endpoints_changed(place):
    place.pool(8000)
    place.pod("a")
    discovery = place.discovery
    told: list[tuple[list[str], list[str], list[str]]] = []

    def note(delta: Delta) -> None:
        told.append((sorted(delta.changed), list(delta.removed), sorted(place.boot_ids)))

    discovery.pods.subscribe(note)
    await discovery.start(place.store)
    await discovery.pods.settled()
    await until(lambda: place.api.watches(PODS), "the pods are watched")
    place.pod("b", ready=False)
    await until(lambda: len(told) == 2, "the pod is told")
    place.api.delete(PODS, "a")
    await until(lambda: len(told) == 3, "its end is told")
    assert told == [(["llm/a"], [], ["a-rank-0"]), (["llm/b"], [], ["a-rank-0"]), ([], ["llm/a"], [])]
    assert sorted(discovery.pods.objects) == ["llm/b"]


async def test_pods_of_another_selection_replace_those_before(place):
    place.pool(8000)
    place.pod("a")
    place.pod("b")
    discovery = place.discovery
    await discovery.start(place.store)
    told: list[Delta] = []
    unsubscribe = discovery.pods.subscribe(told.append)
    discovery.pods.replace(None)
    assert (dict(told[0].changed), sorted(told[0].removed)) == ({}, ["llm/a", "llm/b"])
    assert (discovery.pods.objects, discovery.pods.problems) == ({}, ())
    unsubscribe()
    discovery.pods.replace(None)
    assert len(told) == 1
