# SPDX-License-Identifier: Apache-2.0
"""Facts on the accelerators of a node, from its labels of all vendors and clouds."""

from collections.abc import Mapping

import msgspec

from epp.framework.accelerators.tag import NETWORK_GBPS, Partition
from epp.hardware.catalogue import CATALOGUE, Catalogue, InstanceType, find_instance_type
from epp.hardware.facts import Facts, Rank
from epp.hardware.labels.clouds import read_clouds, read_gke_gpu, read_gke_tpu
from epp.hardware.labels.nvidia import read_nvidia
from epp.hardware.labels.other_vendors import read_amd, read_ascend, read_gaudi, read_intel
from epp.hardware.labels.reading import INSTANCE_TYPE_LABELS, MIB, Reading, common_facts, read_pci
from epp.hardware.mig.slices import NodeGpus

_PRODUCT, _MEMORY, _GKE = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "cloud.google.com/gke-accelerator"
_READERS = (read_nvidia, read_gke_gpu, read_gke_tpu, read_amd, read_intel, read_gaudi, read_ascend)


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
    machine = find_instance_type(next((labels[key] for key in INSTANCE_TYPE_LABELS if labels.get(key)), ""))
    return NodeGpus() if machine is None else NodeGpus(((machine.product, None),))


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the accelerators of one node."""

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
    readings = [reading for read in _READERS if (reading := read(labels, catalogue)) is not None]
    readings.extend(read_clouds(labels, catalogue))
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
        warnings=tuple(warning for reading in readings for warning in reading.warnings),
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
    name = next((labels[key] for key in INSTANCE_TYPE_LABELS if labels.get(key)), "")
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
    if machine is None or product is None:
        return [], None
    if any(reading.vendor != product.vendor for reading in readings):
        return [], None
    facts = product.facts(f"instance-type/{name}", partition or machine.partition)
    if partition is None:
        return [msgspec.structs.replace(facts, partition=machine.partition), *more], machine.count
    # a machine type counts GPUs, not slices
    return [facts, *more], None
