# SPDX-License-Identifier: Apache-2.0
"""Values that contradict other objects: MIG profiles of other GPUs, duplicate names and UUIDs."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import is_
from typing import Generic, NamedTuple, TypeVar

import msgspec

from epp.hardware.mig import profile_fault
from epp.hardware.mig_slices import ANNOTATION, Issue, NodeGpus, SliceNode, annotated_claims, sanitized_claim
from epp.hardware.node_labels import facts_from_labels, gpus_by_labels
from epp.hardware.resources import amounts_in, profile_of
from epp.kube.objects.base import quantity_of
from epp.kube.objects.core import Node, Pod
from epp.kube.objects.dra import ResourceSlice, SliceDevice
from epp.kube.objects.limits import GPUS_OF_ALLOCATION
from epp.kube.objects.tensor_fusion import Gpu

IGNORED = ": ignored"
"""Suffix of a warning about a label without effect."""
_GPU_IDS = re.compile(r".*/gpu-ids")
_SHARE = re.compile(r".*/(vram|tflops|compute-percent)-(limit|request)")
"""Annotations with the share of a pod in a GPU."""


T = TypeVar("T")


class Computed(NamedTuple, Generic[T]):
    of: tuple[object, ...]
    value: T


def computed(before: Computed[T] | None, of: tuple[object, ...], compute: Callable[[], T]) -> Computed[T]:
    """Return the result of a computation; that of `before` if it was of the same objects."""
    if before is not None and len(before.of) == len(of) and all(map(is_, before.of, of)):
        return before
    return Computed(of, compute())


def recomputed(
    before: Mapping[str, Computed[T]], objects: Mapping[str, tuple[object, ...]], compute: Callable[..., T]
) -> dict[str, Computed[T]]:
    """Return the results by name; results of `before` are reused for the same objects."""
    return {name: computed(before.get(name), of, partial(compute, *of)) for name, of in objects.items()}


class Validation(msgspec.Struct, frozen=True):
    """Impossible values by kind of object."""

    kinds: Mapping[str, Mapping[str, Computed[tuple[Issue, ...]]]] = {}
    claims: tuple[Issue, ...] = ()
    """Issues of slices by source."""
    remarks: tuple[str, ...] = ()
    """Messages about duplicate names and UUIDs."""
    named: tuple[tuple[str, ...], tuple[ResourceSlice, ...], tuple[SliceNode, ...], tuple[Gpu, ...]] = ((), (), (), ())
    """Objects checked for the remarks."""

    def after(
        self,
        *,
        nodes: Mapping[str, Node],
        pods: Mapping[str, tuple[Pod, ...]],
        slicers: Mapping[str, SliceNode],
        slices: Mapping[str, ResourceSlice],
        gpus: Mapping[str, Gpu],
        claims: tuple[Issue, ...],
        classes: Iterable[str],
    ) -> "Validation":
        """Check these objects, with pods by node; unchanged objects are not checked again."""
        of_pods = {name: (nodes.get(name), slicers.get(name), *members) for name, members in pods.items()}
        checks: tuple[tuple[str, Mapping[str, tuple[object, ...]], Callable[..., tuple[Issue, ...]]], ...] = (
            ("Node", {name: (node,) for name, node in nodes.items()}, _issues_of_node),
            ("Pod", of_pods, lambda *of: tuple(_issues_of_pods(*of))),
            ("ResourceSlice", {name: (each,) for name, each in slices.items()}, _issues_of_slice),
            ("GPU", {name: (gpu,) for name, gpu in gpus.items()}, _issues_of_gpu),
        )
        kinds = {kind: recomputed(self.kinds.get(kind, {}), objects, check) for kind, objects, check in checks}
        named = (tuple(classes), tuple(slices.values()), tuple(slicers.values()), tuple(gpus.values()))
        remarks = self.remarks if named == self.named else tuple(_remarks_on(*named))
        return Validation(kinds, claims, remarks, named)

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        """Yield kind, name, and text with field, value and remedy."""
        for kind, objects in self.kinds.items():
            for found in objects.values():
                for name, issue in found.value:
                    yield kind, name, issue
        for source, issue in self.claims:
            kind, _, name = source.partition("/")
            yield kind, name, issue


def gpus_of_node(node: Node | None, slicer: SliceNode | None) -> NodeGpus:
    """Return the GPUs of a node from InstaSlice or its labels."""
    named = () if slicer is None else tuple((gpu.gpu_name, gpu.memory_bytes) for gpu in slicer.gpus if gpu.gpu_name)
    if not named and node is not None:
        named = gpus_by_labels(node.metadata.labels).products
    return NodeGpus(named, frozenset() if slicer is None else slicer.profiles)


def _issues_of_node(node: Node) -> tuple[Issue, ...]:
    warnings = facts_from_labels(node.metadata.labels).warnings
    return tuple((node.name, text.removesuffix(IGNORED)) for text in warnings if text.endswith(IGNORED))


def _issues_of_pods(node: Node | None, slicer: SliceNode | None, *pods: Pod) -> Iterator[Issue]:
    """Yield slices in requests and annotations that the GPUs of the node do not support, and impossible shares."""
    gpus = gpus_of_node(node, slicer)
    for pod in pods:
        for place, amounts in amounts_in(pod):
            for name in amounts:
                if (profile := profile_of(name)) and (fault := gpus.fault_of(profile)):
                    yield pod.id, f"{place}[{name}] {fault}"
        yield from ((pod.id, issue) for issue in _issues_of_shares(pod.metadata.annotations))
        try:
            claims = annotated_claims(pod, pod.spec.node_name)
        except ValueError as error:
            yield pod.id, f"metadata.annotations[{ANNOTATION}]: {error}"
            continue
        for claim in claims:
            for _, issue in sanitized_claim(claim, slicer, gpus)[1]:
                yield pod.id, f"metadata.annotations[{ANNOTATION}]: {issue}"


def gpu_ids(text: str) -> tuple[str, ...]:
    """Return the GPUs in an annotation of TensorFusion; none if they are more than it allocates at once."""
    ids = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    return ids if len(ids) <= GPUS_OF_ALLOCATION else ()


def _issues_of_shares(annotations: Mapping[str, str]) -> Iterator[str]:
    for key, text in annotations.items():
        if _GPU_IDS.fullmatch(key) and text.strip(", ") and not gpu_ids(text):
            yield f"metadata.annotations[{key}] has more than {GPUS_OF_ALLOCATION} GPUs: name those of one allocation"
        if _SHARE.fullmatch(key):
            try:
                is_possible = quantity_of(text) > 0
            except ValueError:
                is_possible = False
            if not is_possible:
                yield f"metadata.annotations[{key}] is {text!r:.60}: write a quantity above 0, such as 20Gi or 50"


def _issues_of_slice(each: ResourceSlice) -> tuple[Issue, ...]:
    faults = [mig_fault(device, each.driver) for device in each.devices]
    places = ((f"spec.devices[{index}].attributes[profile]", fault) for index, fault in enumerate(faults))
    return tuple((each.id, f"{place} {fault}") for place, fault in places if fault)


def mig_fault(device: SliceDevice, driver: str) -> str:
    """Return why the profile of a MIG device is impossible; empty if it is possible, or for other devices."""
    kind, profile, product = (device.attributes.get(f"{driver}/{name}") for name in ("type", "profile", "productName"))
    if kind != "mig" or not isinstance(profile, str):
        return ""
    return profile_fault(profile, product if isinstance(product, str) else "")


def _issues_of_gpu(gpu: Gpu) -> tuple[Issue, ...]:
    parts = gpu.status.allocated_partitions.items()
    faults = ((uid, template_fault(gpu, part.template_id)) for uid, part in parts)
    return tuple((gpu.id, f"status.allocatedPartitions[{uid}].templateId {fault}") for uid, fault in faults if fault)


def template_fault(gpu: Gpu, template: str) -> str:
    """Return why the GPU does not support the template, if that is a MIG profile; otherwise empty."""
    if profile_fault(template):  # not a MIG profile
        return ""
    memory = gpu.status.capacity.vram
    product = gpu.status.gpu_model or gpu.status.model
    return profile_fault(template, product, None if memory is None else int(memory))


def _remarks_on(
    classes: Iterable[str], slices: Iterable[ResourceSlice], slicers: Iterable[SliceNode], gpus: Iterable[Gpu]
) -> Iterator[str]:
    names = ((name.lower(), name) for name in classes)
    yield from _twice(names, "AcceleratorClasses {places} differ only in case: give each a unique name")
    devices = (
        (f"{each.driver}/{each.pool}/{device.name} of generation {each.generation}", f"ResourceSlice {each.name}")
        for each in slices
        for device in each.devices
    )
    yield from _twice(devices, "device {name} is in {places}: the last one counts; give each a unique name")
    uuids = ((gpu.gpu_uuid, node.source) for node in slicers for gpu in node.gpus)
    yield from _twice(uuids, "GPU {name} is in {places}: the first one of a node counts; correct the UUID of one")
    used = ((gpu.status.uuid, f"GPU {gpu.name}") for gpu in gpus if gpu.status.uuid)
    yield from _twice(used, "{places} have the UUID {name}: an endpoint with it gets the first one; correct the other")


def _twice(names: Iterable[tuple[str, str]], sentence: str) -> Iterator[str]:
    """Yield the sentence, with `{name}` and `{places}`, for each duplicate name."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    for name, found in places.items():
        if len(found) > 1:
            yield sentence.format(name=name, places=" and ".join(found))
