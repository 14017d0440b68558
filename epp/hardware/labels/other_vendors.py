# SPDX-License-Identifier: Apache-2.0
"""Labels of AMD, Intel and Huawei."""

import re
from collections.abc import Mapping

from epp.framework.accelerators.tag import AcceleratorKind, Partition, Sharing
from epp.framework.quantities import GIB
from epp.hardware.catalogue import CATALOGUE, Catalogue, Product, devices_of_mode, partition_of_mode, same_size
from epp.hardware.labels.reading import PCI_DEVICES, LabelReader, Reading

_COMPUTE_UNITS = {(110, 64): "mi250x", (228, 128): "mi300a", (304, 192): "mi300x", (304, 256): "mi325x"}
"""Models by compute units and GiB."""
_UNITS = re.compile("[0-9]{1,6}")
_SIZE = re.compile(r"([1-9][0-9]{0,3})(?:G|Gi|GB|GiB)?")
_DEVICE_COUNT = re.compile(r"gpu\.intel\.com/device-id\.(?P<id>[0-9a-f]{4}(?:-[0-9a-f]{4})?)\.count")
_CHIP_SIZE = re.compile(r"([1-9][0-9]{0,3})(?:G|Gi|GB|GiB)")
_GAUDI = re.compile(r"(intel\.)?feature\.node\.kubernetes\.io/gaudi")


def read_amd(labels: Mapping[str, str], catalogue: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts of AMD's node labeller; None without such labels. Old labels have values in their keys.

    `vram` is rounded to GiB, although it is written `192G`. The family label is always `AI`; the family comes from the
    catalogue, by product name, device id, or compute units and memory.
    """
    reader = LabelReader(labels)
    product, products = _value(reader, "product-name")
    size, sizes = _value(reader, "vram")
    units, unit_counts = _value(reader, "cu-count")
    device_id, ids = _value(reader, "device-id")
    if not (product or size or units or device_id):
        return None
    match = _SIZE.fullmatch(size)
    memory = int(match[1]) * GIB if match else None
    if size and match is None:
        reader.warnings.append(f"label amd.com/gpu.vram: {size!r} is not of the form 192G: ignored")
    mode = reader.text("amd.com/compute-memory-partition") or _value(reader, "compute-memory-partition")[0]
    lookup = product if catalogue.find(product) else PCI_DEVICES["1002"].get(device_id.lower().removeprefix("0x"), "")
    if not lookup and memory and _UNITS.fullmatch(units):
        lookup = _by_compute_units(int(units), memory // GIB, devices_of_mode(mode, None) or 1)
    known = catalogue.find(lookup, memory) if lookup else None
    partition = partition_of_mode(mode, known) or _by_units(units, known)
    if mode and partition is None:
        reader.warnings.append(
            f"label amd.com/gpu.compute-memory-partition: {mode!r} is not of the form cpx_nps4: ignored"
        )
    return Reading(
        kind=AcceleratorKind.GPU,
        vendor="amd",
        product=product or None,
        memory_bytes=_share(memory, partition, known),
        features=frozenset({"rocm"}),
        partition=None if partition == Partition() else partition,
        lookup=lookup,
        device_memory_bytes=memory,
        node_count=next((count for count in (products, sizes, unit_counts, ids) if count), None),
        warnings=tuple(reader.warnings),
    )


def _value(reader: LabelReader, name: str) -> tuple[str, int | None]:
    """Return the most frequent value, and the number of devices if the label has it.

    The label is `amd.com/gpu.vram: 192G`, or has the value in its key: `beta.amd.com/gpu.vram.192G: "8"`.
    """
    counted: dict[str, int] = {}
    plain = ""
    for prefix in ("amd.com/gpu.", "beta.amd.com/gpu."):
        plain = plain or reader.text(f"{prefix}{name}")
        for key in sorted(reader.labels):
            if key.startswith(f"{prefix}{name}.") and (count := reader.number(key)):
                counted[key.removeprefix(f"{prefix}{name}.")] = count
    if len(counted) > 1:
        reader.warnings.append(
            f"labels amd.com/gpu.{name}.*: the devices of the node differ ({', '.join(sorted(counted))}):"
            " the most frequent value counts"
        )
    most = max(counted, key=lambda value: counted[value], default="")
    return plain or most, counted.get(plain or most)


def _by_compute_units(units: int, gigabytes: int, parts: int) -> str:
    """Return the model with these compute units and memory, of a part or of the whole device."""
    whole = ((units, gigabytes), (units * parts, gigabytes), (units * parts, gigabytes * parts))
    return next((_COMPUTE_UNITS[each] for each in whole if each in _COMPUTE_UNITS), "")


def _by_units(units: str, known: Product | None) -> Partition | None:
    """Return the partition with these compute units; None for a whole device."""
    whole = known.compute_units if known else None
    if whole is None or not _UNITS.fullmatch(units) or not 0 < int(units) <= whole / 2:
        return None
    share = int(units) / whole
    return Partition(kind=Sharing.AMD, compute_fraction=share, memory_fraction=share)


def _share(memory: int | None, partition: Partition | None, known: Product | None) -> int | None:
    """Return the memory of a partition; the label may describe a partition or the whole device."""
    if memory is None or partition is None or partition.memory_fraction == 1:
        return memory
    whole = known.memory_bytes if known else None
    return int(memory * partition.memory_fraction) if whole is None or same_size(whole, memory) else memory


def read_intel(labels: Mapping[str, str], _: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts; None without such labels."""
    reader = LabelReader(labels)
    product = reader.text("gpu.intel.com/product")
    counts = {
        match["id"].rpartition("-")[2]: count
        for key in sorted(labels)
        if (match := _DEVICE_COUNT.fullmatch(key)) and (count := reader.number(key))
    }
    if not (product or counts or reader.truth("intel.feature.node.kubernetes.io/gpu")):
        return None
    return Reading(
        kind=AcceleratorKind.XPU,
        vendor="intel",
        family=reader.text("gpu.intel.com/family").lower() or None,
        product=product or None,
        features=frozenset({"level-zero"}),
        lookup=product or next((model for device in counts if (model := PCI_DEVICES["8086"].get(device))), ""),
        node_count=reader.number("gpu.intel.com/device.count") or sum(counts.values()) or None,
        warnings=tuple(reader.warnings),
    )


def read_gaudi(labels: Mapping[str, str], _: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts about Gaudi accelerators; None without such labels. The memory label is in MiB."""
    reader = LabelReader(labels)
    product = reader.text("habana.ai/product.name")
    memory = reader.mebibytes("habana.ai/device.memory")
    if not (product or memory or any(_GAUDI.fullmatch(key) and reader.truth(key) for key in labels)):
        return None
    return Reading(
        kind=AcceleratorKind.NPU,
        vendor="intel",
        family="gaudi",
        product=product or None,
        memory_bytes=memory,
        lookup=product,
        device_memory_bytes=memory,
        node_count=reader.number("habana.ai/device.count") or None,
        warnings=tuple(reader.warnings),
    )


def read_ascend(labels: Mapping[str, str], catalogue: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts about Ascend NPUs; None without such labels.

    `accelerator` has the series, such as `huawei-Ascend910`; the chip name distinguishes 910B3 and 910B4.
    """
    reader = LabelReader(labels)
    chip = reader.text("node.kubernetes.io/npu.chip.name")
    series = reader.text("accelerator").lower().removeprefix("huawei-")
    if not chip and not series.startswith(("ascend", "npu")):
        return None
    text = reader.text("mind-cluster/npu-chip-memory")
    match = _CHIP_SIZE.fullmatch(text)
    if text and match is None:
        reader.warnings.append(f"label mind-cluster/npu-chip-memory: {text!r} is not of the form 64G: ignored")
    product = chip if not chip or chip.lower().startswith("ascend") else f"Ascend{chip}"
    return Reading(
        kind=AcceleratorKind.NPU,
        vendor="huawei",
        family="ascend",
        product=product or reader.text("accelerator").removeprefix("huawei-") or None,
        memory_bytes=int(match[1]) * GIB if match else None,
        lookup=next((each for each in (product, series) if each and catalogue.find(each)), ""),
        warnings=tuple(reader.warnings),
    )
