# SPDX-License-Identifier: Apache-2.0
"""Facts from InstaSlice: the slices of an endpoint and their state."""

from collections.abc import Iterator, Sequence

from epp.framework.accelerators.tag import (
    SLOTS_FREE,
    SLOTS_TOTAL,
    AcceleratorKind,
    AttributeValue,
    Device,
    Partition,
    Routability,
)
from epp.hardware.endpoint_context import EndpointContext
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.merge import SEVERITY, DrainOrIgnore
from epp.hardware.inventory import Inventory
from epp.hardware.mig import UNKNOWN_SLICE, joined, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.mig.slices import SliceClaim, SliceNode, annotated_claims, sanitized_claim
from epp.hardware.resources import SLICER_DOMAINS, ResourceRequest
from epp.hardware.validation import gpus_of_node
from epp.kube.objects.core import mig_uuids_in

SLICE = "epp/slice"
"""Attribute: `unknown` if a pod requests a slice without a claim."""
_USUAL_SLOTS = 8
"""Memory slots of a GPU of an unknown model."""


def instaslice_facts(context: EndpointContext, requested: Sequence[ResourceRequest]) -> Iterator[Facts]:
    """Yield facts of rank SLICE_CLAIM; none without slices and requests for slices."""
    inventory = context.inventory
    claims = _claims(context) or _annotated(context)
    node_name = context.node_name or next((claim.node for claim in claims if not claim.tentative), "")
    node = inventory.slice_nodes.get(node_name)
    wants = [each for each in requested if each.profile and (node is not None or each.name.startswith(SLICER_DOMAINS))]
    if not claims and not wants:
        return
    if claims:
        yield _of_claims(claims, node, inventory, pod_ready=context.pod is None or context.pod.ready)
        if not any(claim.sound or claim.tentative for claim in claims):
            yield Facts(source="InstaSlice", rank=Rank.SELF, partition=UNKNOWN_SLICE)
    else:
        yield Facts(
            source="InstaSlice",
            rank=Rank.SLICE_CLAIM,
            state=Routability.DRAINING if context.options.on_missing_claim == "Drain" else Routability.UNKNOWN,
            reason=f"the pod requests {wants[0].name} and has no claim for it",
            attributes={SLICE: "unknown"},
        )
    if node is not None:
        yield _of_node(node, inventory.slice_claims_by_node.get(node.name, ()), context.options.on_node_not_ready)


def _claims(context: EndpointContext) -> tuple[SliceClaim, ...]:
    """Return the claims of the pod on its node; staged claims only if there are no others.

    A claim belongs to the pod that it names, to the pods with the environment of its ConfigMap, and to those with the
    UUID of its slice in their environment or their declaration.
    """
    inventory = context.inventory
    uuids = set() if context.pod is None else set(context.pod.mig_uuids)
    if context.endpoint.accelerator is not None:
        uuids |= mig_uuids_in(context.endpoint.accelerator.device)
    maps = {name for uuid in uuids for name in inventory.mig_maps.get(uuid, ())}
    maps |= frozenset() if context.pod is None else context.pod.environment_maps
    keys = (*context.pod_keys, *(f"env:{name}" for name in sorted(maps)))
    found = [
        claim
        for claim in inventory.all_by_pod(inventory.slice_claims_by_pod, keys)
        if not context.node_name or claim.node in {"", context.node_name}
    ]
    return tuple(claim for claim in found if not claim.tentative) or tuple(found)


def _annotated(context: EndpointContext) -> tuple[SliceClaim, ...]:
    """Return the claims in the annotation of the device plugin; none if it is invalid."""
    if context.pod is None:
        return ()
    try:
        claims = annotated_claims(context.pod, context.node_name)
    except ValueError:  # reported with other issues of the pod
        return ()
    gpus = gpus_of_node(context.node, context.slicer)
    return tuple(sanitized_claim(claim, context.slicer, gpus)[0] for claim in claims)


def _of_claims(claims: Sequence[SliceClaim], node: SliceNode | None, inventory: Inventory, *, pod_ready: bool) -> Facts:
    """Return the facts of the claims. Claims without a profile only contribute their state, unless all lack one."""
    worst = min(claims, key=lambda claim: SEVERITY.index(claim.routability(pod_ready=pod_ready)))
    state = worst.routability(pod_ready=pod_ready)
    reason = None if state is Routability.ROUTABLE else f"{worst.source} is {worst.state}"
    if worst.tentative:
        return Facts(source="InstaSlice", rank=Rank.SLICE_CLAIM, state=state, reason=reason)
    claims = [claim for claim in claims if claim.sound] or claims
    profiles = [parse_mig_profile(claim.profile) for claim in claims]
    sizes = [profile.memory_bytes for profile in profiles if profile is not None]
    gpu = None if node is None else node.gpu(claims[0].gpu_uuid)
    names = sorted({claim.profile for claim in claims})
    return Facts(
        source="InstaSlice",
        rank=Rank.SLICE_CLAIM,
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        product=gpu.gpu_name if gpu is not None and gpu.gpu_name else None,
        devices=tuple(_device(claim, inventory) for claim in claims),
        count=len(claims),
        memory_bytes=sum(sizes) // len(sizes) if len(sizes) == len(claims) else None,
        partition=joined([_partition(claim, node) for claim in claims]) if claims[0].sound else None,
        state=state,
        reason=reason,
        node=worst.node or None,
        attributes={"inference.redhat.com/profiles": ",".join(names)} if len(names) > 1 else {},
    )


def _partition(claim: SliceClaim, node: SliceNode | None) -> Partition:
    profile = parse_mig_profile(claim.profile)
    if profile is None:
        return UNKNOWN_SLICE
    gpu = None if node is None else node.gpu(claim.gpu_uuid)
    layout = None if gpu is None else mig_gpu(gpu.gpu_name, gpu.memory_bytes)
    return partition_of(profile, layout, start=claim.start, parent_id=claim.gpu_uuid)


def _device(claim: SliceClaim, inventory: Inventory) -> Device:
    """Return the slice; its id is its UUID if the ConfigMap is known."""
    place = "" if claim.start is None else f"/{claim.start}"
    known = inventory.mig_uuids.get(claim.config_map)
    name = f"{claim.gpu_uuid}/{claim.profile}{place}" if claim.gpu_uuid else claim.source
    return Device(
        id=name if known is None else min(known.uuids),
        node=claim.node,
        parent_id=claim.gpu_uuid,
    )


def _of_node(node: SliceNode, claims: Sequence[SliceClaim], on_not_ready: DrainOrIgnore) -> Facts:
    """Return the facts of the node, which apply to all its slices."""
    layouts = [mig_gpu(gpu.gpu_name, gpu.memory_bytes) for gpu in node.gpus]
    total = sum(_USUAL_SLOTS if layout is None else layout.memory_slots for layout in layouts)
    taken = sum(claim.size or 0 for claim in claims if claim.occupies)
    attributes: dict[str, AttributeValue] = {}
    if total:
        attributes = {SLOTS_TOTAL: total, SLOTS_FREE: max(total - taken, 0)}
    drains = node.ready is False and on_not_ready == "Drain"
    return Facts(
        source=node.source,
        rank=Rank.SLICE_CLAIM,
        state=Routability.DRAINING if drains else None,
        reason=f"node {node.name} is not ready: {node.reason or 'no reason given'}" if drains else None,
        attributes=attributes,
    )
