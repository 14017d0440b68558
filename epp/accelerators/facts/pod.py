"""What a pod itself says by what it asks for, and where its endpoint is."""

from collections.abc import Iterator, Sequence

from epp.accelerators.facts import Facts, Rank
from epp.accelerators.facts.surroundings import Surroundings
from epp.accelerators.inventory import Inventory
from epp.accelerators.labels import NodeFacts
from epp.accelerators.mig import joined, mig_gpu, parse_mig_profile, partition_of
from epp.accelerators.objects.core import Pod
from epp.accelerators.resources import Asked, asked_of
from epp.framework.accelerator_attributes import BOOT_ID, POD_UID
from epp.framework.accelerators import AcceleratorKind, AttributeValue, Partition, Sharing

_AMD_PARTITION_PREFIX = "amd.com/"


def endpoint_facts(around: Surroundings, inventory: Inventory, local_cluster: str) -> Facts:
    """Return where the endpoint is, and what tells whether it is still the same machine and pod."""
    attributes: dict[str, AttributeValue] = {}
    slicer = inventory.slice_nodes.get(around.node_name)
    if boot := around.boot_id or ("" if slicer is None else slicer.boot_id):
        attributes[BOOT_ID] = boot
    if around.pod is not None and around.pod.metadata.uid:
        attributes[POD_UID] = around.pod.metadata.uid
    return Facts(
        source="endpoint" if around.pod is None else f"Pod/{around.pod.id}",
        rank=Rank.OPERATOR,
        node=around.node_name or None,
        cluster=around.endpoint.cluster or local_cluster or None,
        attributes=attributes,
    )


def cpu_facts(pod: Pod) -> Facts:
    """Return what a pod is that asks for no accelerator in any way."""
    return Facts(source=f"Pod/{pod.id}", rank=Rank.RESOURCES, kind=AcceleratorKind.CPU)


def pod_facts(around: Surroundings, asked: Sequence[Asked], node: NodeFacts, inventory: Inventory) -> Iterator[Facts]:
    """Yield how many devices the endpoint has, and the slices that its pod asks for.

    A slice that is asked for is what the endpoint has, so it ranks with claims, below them by order. Where nobody
    knows what the pod asks for, all devices of the node are the endpoint's, if it is alone there as far as is known;
    but a process cannot use more than one MIG slice.
    """
    if around.pod is None:
        part = next((fact.partition for fact in node.facts if fact.partition is not None), None)
        count = 1 if part is not None and part.kind is Sharing.MIG else node.slice_chips or node.count
        if count is not None and _alone(around, inventory):
            yield Facts(source="labels", rank=Rank.RESOURCES, count=count)
        return
    if not asked:
        return
    source = f"Pod/{around.pod.id}"
    if slices := [each for each in asked if each.profile]:
        yield _sliced(source, slices, node)
    yield Facts(
        source=source,
        rank=Rank.RESOURCES,
        kind=next((each.kind for each in asked if each.kind is not AcceleratorKind.UNKNOWN), None),
        vendor=next((each.vendor for each in asked if each.vendor), None),
        count=sum(each.count for each in asked),
        partition=_amd_partition(asked),
        resources=frozenset(each.name for each in asked),
    )


def _sliced(source: str, slices: Sequence[Asked], node: NodeFacts) -> Facts:
    product = next((fact.product for fact in node.facts if fact.product), "") or ""
    layout = mig_gpu(product) if product else None
    profiles = [profile for each in slices if (profile := parse_mig_profile(each.profile)) for _ in range(each.count)]
    return Facts(
        source=source,
        rank=Rank.SLICE_CLAIM,
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        count=len(profiles),
        memory_bytes=sum(profile.memory_bytes for profile in profiles) // len(profiles),
        partition=joined([partition_of(profile, layout) for profile in profiles]),
    )


def _amd_partition(asked: Sequence[Asked]) -> Partition | None:
    """Return the partition that the name of a resource says, as `amd.com/cpx_nps4` does; its share is not known."""
    for each in asked:
        name = each.name.removeprefix(_AMD_PARTITION_PREFIX)
        if each.name.startswith(_AMD_PARTITION_PREFIX) and name != "gpu":
            return Partition(kind=Sharing.AMD, profile=name)
    return None


def _alone(around: Surroundings, inventory: Inventory) -> bool:
    """Return whether no pod that is known of asks for accelerators of the node."""
    return not any(asked_of(pod) for pod in inventory.pods_by_node.get(around.node_name, ()))
