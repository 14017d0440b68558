# SPDX-License-Identifier: Apache-2.0
"""What is indexed step by step is what would be indexed at once."""

from hypothesis import given
from hypothesis import strategies as st

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.hardware.inventory import Inventory, difference, reindexed
from epp.kube.objects.base import Metadata
from epp.kube.objects.core import Pod, PodSpec, PodStatus
from epp.kube.objects.dra import AllocatedDevice, Consumer, ResourceClaim
from epp.kube.objects.followed import ClusterObjects

POD, CLAIM = ObjectKind("", "Pod"), ObjectKind("resource.k8s.io", "ResourceClaim")


def pod(name: str, node: str, address: str, phase: str) -> Pod:
    metadata = Metadata(name=name, namespace="llm", uid=f"uid-{name}")
    return Pod(metadata=metadata, spec=PodSpec(node_name=node), status=PodStatus(phase=phase, pod_ip=address))


def claim(name: str, users: list[str], device: str) -> ResourceClaim:
    results = (AllocatedDevice(request="r", driver="d", pool="p", device=device),) if device else ()
    return ResourceClaim(
        metadata=Metadata(name=name, namespace="llm"),
        results=results,
        consumers=tuple(Consumer(resource="pods", name=user, uid=f"uid-{user}") for user in users),
    )


NAMES = st.sampled_from("abcd")
PODS = st.builds(
    pod, NAMES, st.sampled_from(["", "n1", "n2"]), st.sampled_from(["", "10.0.0.1"]), st.sampled_from(["", "Failed"])
)
CLAIMS = st.builds(claim, NAMES, st.lists(NAMES, max_size=2), st.sampled_from(["", "d1", "d2"]))
STEPS = st.lists(st.tuples(st.lists(PODS, max_size=4), st.lists(CLAIMS, max_size=4)), min_size=1, max_size=6)


@given(STEPS)
def test_inventory_that_follows_changes_is_the_one_of_what_is_there_now(steps):
    state, inventory = ClusterObjects(), Inventory()
    for pods, claims in steps:
        changes = []
        for kind, found in ((POD, pods), (CLAIM, claims)):
            now = {each.id: each for each in found}
            before = state.kinds[kind].held if kind in state.kinds else {}
            differ = {name for name in {*now, *before} if now.get(name) != state.find(kind, name)}
            changes.append(ObjectsOfKind(kind, now, frozenset(differ)))
        state = state.take(changes)
        inventory = Inventory.build([state.as_file()], inventory)
        assert inventory == Inventory.build([state.as_file()])


def by_node(each: Pod) -> set[str]:
    return {each.spec.node_name}


def test_objects_of_a_key_are_in_the_order_of_their_ids_whenever_they_came():
    first, second = pod("a", "n1", "", ""), pod("b", "n1", "", "")
    index = reindexed({}, difference({}, {"llm/b": second}), by_node)
    later = reindexed(index, difference({"llm/b": second}, {"llm/b": second, "llm/a": first}), by_node)
    assert later == {"n1": (first, second)}
    assert index == {"n1": (second,)}  # what was there before stays as it was


def test_nothing_is_made_anew_where_nothing_changed():
    pods = {"llm/a": pod("a", "n1", "", "")}
    index = reindexed({}, difference({}, pods), by_node)
    assert reindexed(index, difference(pods, dict(pods)), by_node) is index
