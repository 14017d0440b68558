"""What the labels of a node say of its accelerators, whichever vendor or cloud has set them."""

from collections.abc import Mapping

import msgspec

from epp.accelerators.catalogue import CATALOGUE, Catalogue
from epp.accelerators.catalogue.instance_types import InstanceType, find_instance_type
from epp.accelerators.facts import Facts
from epp.accelerators.labels.amd import read_amd
from epp.accelerators.labels.gke import read_gke_gpu, read_gke_tpu
from epp.accelerators.labels.intel import read_intel
from epp.accelerators.labels.nvidia import read_nvidia
from epp.accelerators.labels.reading import (
    INSTANCE_TYPE_LABELS,
    Reading,
    common_facts,
    read_pci,
)
from epp.framework.accelerators import Partition

_READERS = (read_nvidia, read_gke_gpu, read_gke_tpu, read_amd, read_intel)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the accelerators of one node."""

    facts: tuple[Facts, ...] = ()
    """For each endpoint on it: those of rank LABELS, then those of rank CATALOGUE. None has `count` or `devices`.

    With MIG strategy mixed they describe a whole GPU: an endpoint that asks for a slice has that slice's memory and
    partition instead.
    """
    count: int | None = None
    """Devices of the node: slices where all are cut alike, GPUs (not replicas) where they are shared."""
    slice_chips: int | None = None
    """Chips of the whole TPU slice that the node belongs to."""
    mig: Mapping[str, int] = msgspec.field(default_factory=dict)
    """MIG profile by its canonical name -> how many of it the node has."""
    warnings: tuple[str, ...] = ()
    """Sentences on labels that could not be read or that no vendor sets."""


def facts_from_labels(
    labels: Mapping[str, str],
    *,
    instance_types: Mapping[str, InstanceType] | None = None,
    catalogue: Catalogue = CATALOGUE,
) -> NodeFacts:
    """Return what a node's labels say of each endpoint on it, and of the node.

    What labels say and what the catalogue says of the product they name are apart, with provenance of their own. The
    machine type, `instance_types` before the built-in table, is the last resort: it counts where no label names a
    product that the catalogue knows. A node of which nothing is known has no facts.
    """
    readings = [reading for read in _READERS if (reading := read(labels, catalogue)) is not None]
    if not readings and (pci := read_pci(labels)) is not None:
        readings = [pci]
    facts = [reading.facts for reading in readings]
    if (common := common_facts(labels)) is not None:
        facts.append(common)
    partition = next((fact.partition for fact in facts if fact.partition is not None), None)
    looked_up, count = _look_up(labels, readings, partition, instance_types, catalogue)
    counts = [reading.count for reading in readings if reading.count is not None]
    return NodeFacts(
        facts=(*facts, *looked_up),
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
    """Return what the catalogue says of the product, and how many of it the machine type has."""
    for reading in readings:
        if reading.lookup and (product := catalogue.find(reading.lookup, reading.device_memory_bytes)) is not None:
            return [product.facts(partition=partition)], None
    name = next((labels[key] for key in INSTANCE_TYPE_LABELS if labels.get(key)), "")
    machine = find_instance_type(name, instance_types)
    product = catalogue.find(machine.product) if machine else None
    if machine is None or product is None:
        return [], None
    if any(reading.facts.vendor != product.vendor for reading in readings):
        return [], None
    # slices of the machine's GPUs are not as many as the GPUs
    return [product.facts(f"instance-type/{name}", partition)], None if partition else machine.count
