# SPDX-License-Identifier: Apache-2.0
"""Facts from the resource requests of a pod, and from its place."""

from collections.abc import Iterator, Sequence

from epp.framework.accelerators.sites import CLIQUE, COMPUTE_DOMAIN
from epp.framework.accelerators.tag import (
    BOOT_ID,
    POD_UID,
    AcceleratorKind,
    AttributeValue,
    Partition,
    Sharing,
)
from epp.hardware.catalogue import CATALOGUE, Catalogue, Product
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.parts import requested_part
from epp.hardware.facts.surroundings import Surroundings
from epp.hardware.inventory import Inventory
from epp.hardware.labels import NodeFacts
from epp.hardware.mig import UNKNOWN_SLICE, joined, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.resources import ResourceRequest, extended_resources, resource_requests
from epp.kube.objects.core import Pod


def endpoint_facts(around: Surroundings, inventory: Inventory, local_cluster: str) -> Facts:
    """Return the place of the endpoint, and the ids that change when its node or pod is replaced."""
    attributes: dict[str, AttributeValue] = {}
    slicer = inventory.slice_nodes.get(around.node_name)
    if boot := around.boot_id or ("" if slicer is None else slicer.boot_id):
        attributes[BOOT_ID] = boot
    if around.pod is not None and around.pod.metadata.uid:
        attributes[POD_UID] = around.pod.metadata.uid
    attributes |= {label: name for label in (CLIQUE, COMPUTE_DOMAIN) if (name := around.node_labels.get(label, ""))}
    return Facts(
        source="endpoint" if around.pod is None else f"Pod/{around.pod.id}",
        rank=Rank.OPERATOR,
        node=around.node_name or None,
        cluster=around.endpoint.cluster or local_cluster or None,
        attributes=attributes,
    )


def cpu_facts(pod: Pod) -> Facts:
    """Return the facts for a pod that requests no accelerator."""
    return Facts(source=f"Pod/{pod.id}", rank=Rank.RESOURCES, kind=AcceleratorKind.CPU)


def pod_facts(
    around: Surroundings,
    requested: Sequence[ResourceRequest],
    node: NodeFacts,
    inventory: Inventory,
    catalogue: Catalogue = CATALOGUE,
) -> Iterator[Facts]:
    """Yield the number of devices of the endpoint, and the slices or parts of devices that its pod requests.

    These have the rank of claims, after them in order. Without a known pod, the endpoint has all devices of
    the node if no known pod requests any; but only one slice, since a process cannot use more than one MIG slice.
    """
    if around.pod is None:
        part = next((fact.partition for fact in node.facts if fact.partition is not None), None)
        count = 1 if part is not None and part.kind is Sharing.MIG else node.slice_chips or node.count
        if count is not None and _node_is_free(around, inventory):
            yield Facts(source="labels", rank=Rank.RESOURCES, count=count)
        return
    if not requested:
        return
    source = f"Pod/{around.pod.id}"
    if slices := [each for each in requested if each.profile]:
        yield _sliced(source, slices, node)
    elif any(each.is_slice for each in requested):
        yield Facts(source=source, rank=Rank.SELF, partition=UNKNOWN_SLICE)
    product = _product(node, catalogue)
    part = requested_part(requested, extended_resources(around.pod), product, around.node, node.count)
    if part is not None:
        yield _part(source, part, product)
    yield Facts(
        source=source,
        rank=Rank.RESOURCES,
        kind=next((each.kind for each in requested if each.kind is not AcceleratorKind.UNKNOWN), None),
        vendor=next((each.vendor for each in requested if each.vendor), None),
        count=sum(each.count for each in requested) if all(each.count for each in requested) else None,
        resources=frozenset(each.name for each in requested),
    )


def _sliced(source: str, slices: Sequence[ResourceRequest], node: NodeFacts) -> Facts:
    product = next((fact.product for fact in node.facts if fact.product), "") or ""
    layout = mig_gpu(product) if product else None
    counted = [(profile, max(each.count, 1)) for each in slices if (profile := parse_mig_profile(each.profile))]
    total = sum(count for _, count in counted)
    return Facts(
        source=source,
        rank=Rank.SLICE_CLAIM,
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        count=total if all(each.count for each in slices) else None,
        memory_bytes=sum(profile.memory_bytes * count for profile, count in counted) // total,
        partition=joined([part for profile, count in counted for part in [partition_of(profile, layout)] * count]),
    )


def _part(source: str, part: Partition, product: Product | None) -> Facts:
    """Return the facts on a part of a device; labels may have the memory of other parts."""
    whole = None if product is None else product.memory_bytes
    return Facts(
        source=source,
        rank=Rank.SLICE_CLAIM,
        memory_bytes=int(whole * part.memory_fraction) if whole and part.kind is not Sharing.CORES else None,
        partition=part,
    )


def _product(node: NodeFacts, catalogue: Catalogue) -> Product | None:
    """Return the product of the node's devices."""
    names = [fact.product for fact in reversed(node.facts) if fact.product]
    return next((found for name in names if (found := catalogue.find(name)) is not None), None)


def _node_is_free(around: Surroundings, inventory: Inventory) -> bool:
    """Return whether no known pod requests accelerators of the node."""
    pods = inventory.pods_by_node.get(around.node_name, ())
    return not any(each.known for pod in pods for each in resource_requests(pod))
