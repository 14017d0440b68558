# SPDX-License-Identifier: Apache-2.0
"""The indexes of an inventory do not depend on the earlier one."""

from hypothesis import given
from hypothesis import strategies as st

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.hardware.inventory import Inventory
from epp.kube.objects.base import Metadata, ObjectKey
from epp.kube.objects.core import Pod, PodSpec, PodStatus
from epp.kube.objects.dra import AllocatedDevice, Consumer, ResourceClaim
from epp.kube.objects.followed import ClusterObjects

POD, CLAIM = ObjectKind("", "Pod"), ObjectKind("resource.k8s.io", "ResourceClaim")


def pod(name: str, node: str, address: str, phase: str) -> Pod:
    metadata = Metadata(name=name, namespace="llm", uid=f"uid-{name}")
    status = PodStatus(phase=phase, pod_ip=address)
    return Pod(key=ObjectKey("", "Pod", "llm", name), metadata=metadata, spec=PodSpec(node_name=node), status=status)


def claim(name: str, users: list[str], device: str) -> ResourceClaim:
    results = (AllocatedDevice(request="r", driver="d", pool="p", device=device),) if device else ()
    return ResourceClaim(
        key=ObjectKey("resource.k8s.io", "ResourceClaim", "llm", name),
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
            before = state.kinds[kind].objects if kind in state.kinds else {}
            differ = {name for name in {*now, *before} if now.get(name) != state.find(kind, name)}
            changes.append(ObjectsOfKind(kind, now, frozenset(differ)))
        state = state.take(changes)
        inventory = Inventory.build([state.as_file()], inventory)
        assert inventory == Inventory.build([state.as_file()])


def test_objects_of_a_key_are_in_the_order_of_their_ids_whenever_they_came():
    first, second = pod("a", "n1", "", ""), pod("b", "n1", "", "")
    state = ClusterObjects().take([ObjectsOfKind(POD, {"llm/b": second}, frozenset({"llm/b"}))])
    before = Inventory.build([state.as_file()])
    state = state.take([ObjectsOfKind(POD, {"llm/b": second, "llm/a": first}, frozenset({"llm/a"}))])
    assert Inventory.build([state.as_file()], before).pods_by_node == {"n1": (first, second)}
    assert before.pods_by_node == {"n1": (second,)}  # what was there before stays as it was
