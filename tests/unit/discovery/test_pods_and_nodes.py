# SPDX-License-Identifier: Apache-2.0
"""Endpoints of pods have the boot ID of their node, and others are told of the pods."""

import pytest

from epp.framework.snapshot import SERVED
from epp.kube.collection import Delta
from tests.support.kube.pool_place import NODES, PODS, VLLM, Place
from tests.support.waiting import until


@pytest.fixture
async def place():
    place = Place(VLLM)
    yield place
    await place.close()


def serve_one(place: Place) -> None:
    """Let the first endpoint have served a request, as far as the picker knows."""
    place.store.ledger.open(0).close()


def served(place: Place) -> float:
    snapshot = place.store.snapshot()
    return float(snapshot.column(SERVED)[snapshot.slots][0])


async def test_is_11_endpoints_have_the_boot_id_of_their_node_from_the_start(place):
    place.node("n1", "boot-1")
    place.pod("a")
    await place.start()
    assert place.boot_ids == {"a-rank-0": "boot-1"}


async def test_is_11_boot_id_that_is_known_later_resets_nothing_and_another_one_does(place):
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


async def test_is_11_node_that_leaves_and_comes_back_after_a_boot_resets_its_endpoints(place):
    place.node("n1", "boot-1")
    place.pod("a")
    await place.start()
    await until(lambda: place.api.watches(NODES), "the nodes are watched")
    serve_one(place)
    place.api.delete(NODES, "n1")
    place.node("n1", "boot-2")
    await until(lambda: place.boot_ids == {"a-rank-0": "boot-2"}, "the node has booted")
    assert served(place) == 0.0


async def test_pods_are_told_ready_or_not_after_their_endpoints_changed(place):
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
