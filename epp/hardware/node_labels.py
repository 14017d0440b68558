# SPDX-License-Identifier: Apache-2.0
"""Facts on the accelerators of a node from its labels: those of vendors, and of clouds and autoscalers."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from epp.framework.accelerators.tag import NETWORK_GBPS, AcceleratorKind, Partition
from epp.framework.quantities import GIB, exact_quantity
from epp.hardware.catalogue import CATALOGUE, Catalogue, InstanceType, find_instance_type
from epp.hardware.facts.merge import Facts, Rank
from epp.hardware.label_reading import MIB, MOST_DEVICES, LabelReader, Reading, common_facts, first_label, read_pci
from epp.hardware.mig import (
    UNKNOWN_SLICE,
    equal_share,
    mig_gpu,
    more_that_fit,
    parse_mig_profile,
    partition_of,
    profile_fault,
)
from epp.hardware.mig_slices import NodeGpus
from epp.hardware.vendor_labels import read_amd, read_ascend, read_gaudi, read_intel, read_nvidia

_LEAST_BYTES, _MOST_BYTES = 2**28, 2**50
"""Range of valid memory sizes of a device."""
_AZURE = "karpenter.azure.com/sku-gpu"
_VENDORS = {
    "nvidia": ("nvidia", AcceleratorKind.GPU),
    "amd": ("amd", AcceleratorKind.GPU),
    "habana": ("intel", AcceleratorKind.NPU),
    "aws": ("aws", AcceleratorKind.NPU),
    "qualcomm": ("qualcomm", AcceleratorKind.NPU),
}
_PREFIX = "cloud.google.com/gke-"
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}")
_FLAT, _FLAT_HOST_CHIPS, _HOST_CHIPS = 2, 8, 4


class _Labels(NamedTuple):
    """Label keys of one cloud; `number` is for a machine, `memory` for one device."""

    product: str = ""
    vendor: str = ""
    number: str = ""
    memory: str = ""
    unit: int = MIB
    """Unit of memory in bytes; a size in GiB is rounded, so that of the product takes precedence."""
    family: str = ""
    """Family of machine types, for products whose generations share a name."""
    always: str = ""
    """Vendor of all devices of the cloud labels."""


def _of_aws(prefix: str) -> tuple[_Labels, _Labels]:
    """Return the labels of Karpenter or EKS Auto Mode, which only differ in their domain."""
    gpu, other = f"{prefix}/instance-gpu", f"{prefix}/instance-accelerator"
    return (
        _Labels(f"{gpu}-name", f"{gpu}-manufacturer", f"{gpu}-count", f"{gpu}-memory"),
        _Labels(f"{other}-name", f"{other}-manufacturer", f"{other}-count", family=f"{prefix}/instance-family"),
    )


_CLOUDS = (
    *_of_aws("karpenter.k8s.aws"),
    *_of_aws("eks.amazonaws.com"),
    _Labels(f"{_AZURE}-name", f"{_AZURE}-manufacturer", f"{_AZURE}-count"),
    # CoreWeave
    _Labels("gpu.nvidia.com/model", "", "gpu.nvidia.com/count", "gpu.nvidia.com/vram", GIB, always="nvidia"),
    _Labels("gpu.nvidia.com/class", "", "gpu.nvidia.com/count", "gpu.nvidia.com/vram", GIB, always="nvidia"),
    # Alibaba Cloud, whose memory has a unit
    _Labels(
        "aliyun.accelerator/nvidia_name",
        number="aliyun.accelerator/nvidia_count",
        memory="aliyun.accelerator/nvidia_mem",
        always="nvidia",
    ),
    # the cluster autoscaler on AWS
    _Labels("k8s.amazonaws.com/accelerator"),
    # AKS, and clusters that follow it, say the vendor or the product
    _Labels("kubernetes.azure.com/accelerator"),
    _Labels("accelerator"),
)


def _read_cloud(keys: _Labels, reader: LabelReader) -> Reading | None:
    catalogue, text = reader.catalogue, reader.text(keys.product)
    vendor_text = (reader.text(keys.vendor) or keys.always).lower()
    if not text and not reader.text(keys.vendor):
        return None
    memory = _memory(keys, reader)
    lookup = next((each for each in (text, reader.text(keys.family)) if each and catalogue.find(each, memory)), "")
    product = catalogue.find(lookup, memory) if lookup else None
    known = _VENDORS.get(vendor_text) or _VENDORS.get(text.lower())
    if known is None and product is not None:
        known = (product.vendor, product.kind)
    if known is None:
        return None
    vendor, kind = known
    return Reading(
        kind=kind,
        vendor=vendor,
        product=text if product is not None or text.lower() not in _VENDORS else None,
        memory_bytes=None if keys.unit == GIB and product is not None and product.memory_bytes else memory,
        lookup=lookup,
        device_memory_bytes=memory,
        node_count=(reader.number(keys.number) or None) if keys.number else None,
    )


def _memory(keys: _Labels, reader: LabelReader) -> int | None:
    """Return the bytes of a device from a number of units, or a quantity such as `16280MiB`."""
    text = reader.text(keys.memory) if keys.memory else ""
    if not text:
        return None
    try:
        size = int(text) * keys.unit if text.isdigit() else int(exact_quantity(text.removesuffix("B")))
    except ValueError:
        size = 0
    if _LEAST_BYTES <= size < _MOST_BYTES:
        return size
    reader.ignored(keys.memory, "is not the memory of an accelerator")
    return None


def _read_gke_gpu(reader: LabelReader) -> Reading | None:
    """Return the facts about GPUs. The memory of a slice comes from its profile, that of a GPU from the catalogue."""
    catalogue, product = reader.catalogue, reader.text(f"{_PREFIX}accelerator")
    if not product:
        return None
    count = reader.number(f"{_PREFIX}accelerator-count")
    size = reader.text(f"{_PREFIX}gpu-partition-size")
    fault = profile_fault(size, product, catalogue=catalogue) if size else ""
    profile = parse_mig_profile(size) if size and not fault else None
    if fault:
        reader.warnings.append(f"label {_PREFIX}gpu-partition-size: the profile {fault}: ignored")
    sharing, sharers = reader.sharing(f"{_PREFIX}gpu-sharing-strategy", f"{_PREFIX}max-shared-clients-per-gpu")
    mig: dict[str, int] = {}
    partition = memory = None
    if profile:
        gpu = mig_gpu(product, catalogue=catalogue)
        partition = partition_of(profile, gpu, sharers=sharers)
        memory = profile.memory_bytes // sharers
        slices = more_that_fit(gpu).get(profile.instance_name) if gpu else None
        count = count * slices if count and slices else None
        mig = {profile.name: count} if count else {}
    elif fault:
        partition = UNKNOWN_SLICE
    elif sharing:
        partition = equal_share(sharing, sharers)
    return Reading(
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        product=product,
        memory_bytes=memory,
        features=frozenset({"cuda"}),
        partition=partition,
        lookup=product,
        node_count=count,
        mig=mig,
    )


def _read_gke_tpu(reader: LabelReader) -> Reading | None:
    """Return the facts about the TPU slice of the node.

    The product of the topology is the number of chips in the slice. Without an accelerator count for this host, a slice
    of up to 8 chips (4 with three dimensions) is assumed to be on one host, and a larger slice on hosts with 4 chips.
    """
    product = reader.text(f"{_PREFIX}tpu-accelerator")
    if not product:
        return None
    key, chips = f"{_PREFIX}tpu-topology", None
    topology = reader.text(key).lower()
    count = reader.number(f"{_PREFIX}accelerator-count")
    dimensions = [int(side) for side in topology.split("x")] if _TOPOLOGY.fullmatch(topology) else []
    if math.prod(dimensions) > MOST_DEVICES:
        reader.ignored(key, f"is more than {MOST_DEVICES} chips", text=topology)
    elif dimensions:
        chips = math.prod(dimensions)
        one_host = _FLAT_HOST_CHIPS if len(dimensions) == _FLAT else _HOST_CHIPS
        count = count or (chips if chips <= one_host else _HOST_CHIPS)
    elif topology:
        reader.ignored(key, "is not of the form 2x4 or 2x2x4", text=topology)
    return Reading(
        kind=AcceleratorKind.TPU,
        vendor="google",
        product=product,
        features=frozenset({"xla"}),
        lookup=product,
        node_count=count,
        slice_chips=chips,
    )


_PRODUCT, _MEMORY, _GKE = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "cloud.google.com/gke-accelerator"
_READERS: tuple[Callable[[LabelReader], Reading | None], ...] = (
    *(read_nvidia, _read_gke_gpu, _read_gke_tpu, read_amd, read_intel, read_gaudi, read_ascend),
    *(partial(_read_cloud, keys) for keys in _CLOUDS),
)
"""Each returns None without such labels."""


def gpus_by_labels(labels: Mapping[str, str]) -> NodeGpus:
    """Return the GPU in the labels, by product or machine type; none if unknown."""
    product = labels.get(_PRODUCT, "").strip()
    memory = labels.get(_MEMORY, "").strip()
    if product:
        of_slice = "-mig-" in product.lower()  # and the memory label is that of a slice
        known = not of_slice and memory.isascii() and memory.isdecimal() and len(memory) < len(str(2**63))
        return NodeGpus(((product, int(memory) * MIB if known else None),))
    if named := labels.get(_GKE, "").strip():
        return NodeGpus(((named, None),))
    machine = find_instance_type(first_label(labels))
    return NodeGpus() if machine is None else NodeGpus(((machine.product, None),))


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    facts: tuple[Facts, ...] = ()
    """Facts of rank LABELS, then of rank CATALOGUE, without `count` and `devices`.

    With MIG strategy mixed they describe a whole GPU; memory and partition of a slice come from the request of the pod.
    """
    count: int | None = None
    """Devices of the node: slices with MIG strategy single; GPUs, not replicas, if they are shared."""
    slice_chips: int | None = None
    """Chips of the whole TPU slice of the node."""
    mig: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Number of slices by canonical name of the MIG profile."""
    warnings: tuple[str, ...] = ()
    """Messages about invalid and non-standard labels."""


def facts_from_labels(
    labels: Mapping[str, str],
    *,
    instance_types: Mapping[str, InstanceType] | None = None,
    catalogue: Catalogue = CATALOGUE,
) -> NodeFacts:
    """Return the facts for each endpoint on the node, and the counts of the node.

    Facts from labels and from the catalogue are separate for provenance. The machine type is used if no label has a
    product of the catalogue; `instance_types` take precedence over the built-in table.
    """
    readings: list[Reading] = []
    warnings: list[str] = []
    for read in _READERS:
        reader = LabelReader(labels, catalogue)
        if (reading := read(reader)) is not None:
            readings.append(reading)
            warnings += reader.warnings
    pci = read_pci(labels)
    vendors = {each.vendor for each in readings}
    if pci is not None and (not readings or (pci.lookup and pci.vendor in vendors)):
        readings.append(pci)
    partition = next((fact.partition for fact in readings if fact.partition is not None), None)
    looked_up, count = _look_up(labels, readings, partition, instance_types, catalogue)
    counts = [reading.node_count for reading in readings if reading.node_count is not None]
    return NodeFacts(
        facts=(*readings, common_facts(labels), *looked_up),
        count=next(iter(counts), count),
        slice_chips=next((reading.slice_chips for reading in readings if reading.slice_chips), None),
        mig={name: number for reading in reversed(readings) for name, number in reading.mig.items()},
        warnings=tuple(warnings),
    )


def _look_up(
    labels: Mapping[str, str],
    readings: list[Reading],
    partition: Partition | None,
    instance_types: Mapping[str, InstanceType] | None,
    catalogue: Catalogue,
) -> tuple[list[Facts], int | None]:
    """Return the catalogue facts of the product, and the count of the machine type.

    If a label matches several products, such as H100, the machine type identifies the product.
    """
    name = first_label(labels)
    machine = find_instance_type(name, instance_types)
    product = catalogue.find(machine.product) if machine else None
    speed = machine.network / 8 / machine.count if machine else 0
    network = Facts(source=f"instance-type/{name}", rank=Rank.CATALOGUE, attributes={NETWORK_GBPS: speed})
    more = [network] if speed else []
    for reading in readings:
        meant = catalogue.meant(reading.lookup, reading.device_memory_bytes) if reading.lookup else ()
        if len(meant) > 1 and product in meant:
            break
        if meant:
            return [meant[0].facts(partition=partition), *more], None
    if machine is None or product is None or any(reading.vendor != product.vendor for reading in readings):
        return [], None
    facts = product.facts(f"instance-type/{name}", partition or machine.partition)
    if partition is not None:  # a machine type counts GPUs, not slices
        return [facts, *more], None
    return [msgspec.structs.replace(facts, partition=machine.partition), *more], machine.count
