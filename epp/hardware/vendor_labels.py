# SPDX-License-Identifier: Apache-2.0
"""Labels of vendors: NVIDIA's GPU feature discovery, AMD, Intel and Huawei."""

import re

from epp.framework.accelerators.tag import AcceleratorKind, Partition, Sharing
from epp.framework.quantities import GIB, exact_quantity
from epp.hardware.catalogue import Product, devices_of_mode, family_of, features_of, partition_of_mode, same_size
from epp.hardware.label_reading import MOST_MEMORY, PCI_DEVICES, LabelReader, Reading
from epp.hardware.mig import (
    UNKNOWN_SLICE,
    MigProfile,
    equal_share,
    mig_gpu,
    parse_mig_profile,
    partition_of,
    profile_fault,
)

_MIXED = re.compile(r"nvidia\.com/mig-(?P<profile>.+)\.count")


def read_nvidia(reader: LabelReader) -> Reading | None:
    """Return the facts of GPU feature discovery.

    `nvidia.com/gpu.memory` is in MiB. With MIG strategy single, product, memory and count describe slices; with mixed
    they describe whole GPUs, and each profile has its own labels. The memory of a slice comes from its profile; that of
    a shared GPU is divided by the number of sharers.
    """
    product = reader.text("nvidia.com/gpu.product")
    memory = _memory(reader)
    count = reader.number("nvidia.com/gpu.count")
    capability = _compute_capability(reader)
    if not (product or memory or count or capability or reader.truth("nvidia.com/gpu.present")):
        return None
    # with MIG strategy single, all GPUs of the node are slices
    sliced = reader.text("nvidia.com/mig.strategy").lower() != "mixed" and "-mig-" in product.lower()
    profile = _single_profile(reader, product) if sliced else None
    partition = UNKNOWN_SLICE if sliced and not profile else _partition(reader, product, profile, memory)
    whole = not sliced and (partition is None or partition.kind is not Sharing.VGPU)
    mig = _mixed_profiles(reader, product, memory)
    if profile and count:
        mig[profile.name] = count
    own_memory = profile.memory_bytes if profile else memory
    family = family_of(capability) if capability else ""  # older labels have ampere for ada-lovelace
    if not capability and not reader.catalogue.find(product):
        family = reader.text("nvidia.com/gpu.family").lower()
    return Reading(
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        family=family or None,
        product=product or None,
        memory_bytes=own_memory // partition.sharers if own_memory and partition else own_memory,
        compute_capability=capability,
        features=_features(reader, capability, sliced=sliced),
        partition=partition,
        lookup=product,
        device_memory_bytes=memory if whole else None,
        node_count=count,
        mig=mig,
    )


def _memory(reader: LabelReader) -> int | None:
    """Return bytes; the label is a number of MiB, or a quantity with a unit."""
    key = "nvidia.com/gpu.memory"
    text = reader.text(key)
    if not text or text.isdigit():
        return reader.mebibytes(key)
    try:
        size = int(exact_quantity(text))
    except ValueError:
        reader.ignored(key, "is not a whole number of MiB")
        return None
    if not 0 < size <= MOST_MEMORY:
        reader.ignored(key, "is not the memory of a GPU in MiB")
        return None
    reader.warnings.append(f"label {key}: {text!r} has a unit, although the label is in MiB: read as a quantity")
    return size


def _compute_capability(reader: LabelReader) -> tuple[int, ...] | None:
    major, minor = (reader.number(f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor"))
    if major is not None:
        return (major, minor or 0)
    text = reader.text("nvidia.com/gpu.compute")
    if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", text):
        return None
    reader.warnings.append(
        "label nvidia.com/gpu.compute: not a label of GPU feature discovery;"
        " read as nvidia.com/gpu.compute.major and .minor"
    )
    return tuple(int(part) for part in text.split("."))


def _single_profile(reader: LabelReader, product: str) -> MigProfile | None:
    """Return the profile of all slices of the node, with MIG strategy single."""
    gpu, _, name = product.lower().rpartition("-mig-")
    if fault := profile_fault(name.removesuffix("-shared"), gpu, catalogue=reader.catalogue):
        reader.warnings.append(f"label nvidia.com/gpu.product: {product!r:.80}: the profile {fault}: ignored")
        return None
    return parse_mig_profile(product)


def _partition(reader: LabelReader, product: str, profile: MigProfile | None, memory: int | None) -> Partition | None:
    sharing, sharers = reader.sharing("nvidia.com/gpu.sharing-strategy", "nvidia.com/gpu.replicas")
    if profile:
        return partition_of(profile, mig_gpu(product, catalogue=reader.catalogue), sharers=sharers)
    if reader.truth("nvidia.com/vgpu.present"):
        known = reader.catalogue.find(product)
        whole = known.memory_bytes if known else None
        fraction = min(memory / whole, 1.0) if memory and whole else 1.0
        return Partition(kind=Sharing.VGPU, compute_fraction=fraction, memory_fraction=fraction)
    if sharing is None and product.upper().endswith("-SHARED"):
        sharing = Sharing.TIME_SLICING
    return None if sharing is None else equal_share(sharing, sharers)


def _features(reader: LabelReader, capability: tuple[int, ...] | None, *, sliced: bool) -> frozenset[str]:
    features = {"cuda", *features_of(capability or ())}
    if reader.truth("nvidia.com/mps.capable"):
        features.add("mps")
    if not sliced:
        features |= {"mig"} if reader.truth("nvidia.com/mig.capable") else set()
        features |= {"nvlink"} if reader.truth("nvidia.com/nvlink") else set()
    return frozenset(features)


def _mixed_profiles(reader: LabelReader, product: str, memory: int | None) -> dict[str, int]:
    """Return the number of slices by profile, without zeros and impossible profiles."""
    counts: dict[str, int] = {}
    for match in filter(None, map(_MIXED.fullmatch, reader.labels)):
        profile = parse_mig_profile(match["profile"])
        if fault := profile_fault(match["profile"], product, memory, reader.catalogue):
            reader.warnings.append(f"label {match[0]}: the profile {fault}: ignored")
        elif profile and (number := reader.number(match[0])):
            counts[profile.name] = number
    return counts


_COMPUTE_UNITS = {(110, 64): "mi250x", (228, 128): "mi300a", (304, 192): "mi300x", (304, 256): "mi325x"}
"""Models by compute units and GiB."""
_UNITS = re.compile("[0-9]{1,6}")
_SIZE = re.compile(r"([1-9][0-9]{0,3})(?:G|Gi|GB|GiB)?")
_DEVICE_COUNT = re.compile(r"gpu\.intel\.com/device-id\.(?P<id>[0-9a-f]{4}(?:-[0-9a-f]{4})?)\.count")
_CHIP_SIZE = re.compile(r"([1-9][0-9]{0,3})(?:G|Gi|GB|GiB)")
_GAUDI = re.compile(r"(intel\.)?feature\.node\.kubernetes\.io/gaudi")


def read_amd(reader: LabelReader) -> Reading | None:
    """Return the facts of AMD's node labeller. Old labels have values in their keys.

    `vram` is rounded to GiB, although it is written `192G`. The family label is always `AI`; the family comes from the
    catalogue, by product name, device id, or compute units and memory.
    """
    catalogue = reader.catalogue
    product, products = _value(reader, "product-name")
    size, sizes = _value(reader, "vram")
    units, unit_counts = _value(reader, "cu-count")
    device_id, ids = _value(reader, "device-id")
    if not (product or size or units or device_id):
        return None
    match = _SIZE.fullmatch(size)
    memory = int(match[1]) * GIB if match else None
    if size and match is None:
        reader.ignored("amd.com/gpu.vram", "is not of the form 192G", text=size)
    mode = reader.text("amd.com/compute-memory-partition") or _value(reader, "compute-memory-partition")[0]
    lookup = product if catalogue.find(product) else PCI_DEVICES["1002"].get(device_id.lower().removeprefix("0x"), "")
    if not lookup and memory and _UNITS.fullmatch(units):
        size_gib, parts = memory // GIB, devices_of_mode(mode, None) or 1  # of a part or of the whole device
        whole = [(int(units), size_gib), (int(units) * parts, size_gib), (int(units) * parts, size_gib * parts)]
        lookup = next((_COMPUTE_UNITS[each] for each in whole if each in _COMPUTE_UNITS), "")
    known = catalogue.find(lookup, memory) if lookup else None
    partition = partition_of_mode(mode, known) or _by_units(units, known)
    whole_bytes, own_memory = known.memory_bytes if known else None, memory
    if memory and partition and (whole_bytes is None or same_size(whole_bytes, memory)):
        own_memory = int(memory * partition.memory_fraction)  # the label may describe a partition or the whole device
    if mode and partition is None:
        reader.ignored("amd.com/gpu.compute-memory-partition", "is not of the form cpx_nps4", text=mode)
    return Reading(
        kind=AcceleratorKind.GPU,
        vendor="amd",
        product=product or None,
        memory_bytes=own_memory,
        features=frozenset({"rocm"}),
        partition=None if partition == Partition() else partition,
        lookup=lookup,
        device_memory_bytes=memory,
        node_count=products or sizes or unit_counts or ids,
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


def _by_units(units: str, known: Product | None) -> Partition | None:
    """Return the partition with these compute units; None for a whole device."""
    whole = known.compute_units if known else None
    if whole is None or not _UNITS.fullmatch(units) or not 0 < int(units) <= whole / 2:
        return None
    share = int(units) / whole
    return Partition(kind=Sharing.AMD, compute_fraction=share, memory_fraction=share)


def read_intel(reader: LabelReader) -> Reading | None:
    product = reader.text("gpu.intel.com/product")
    counts = {
        match["id"].rpartition("-")[2]: count
        for key in sorted(reader.labels)
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
    )


def read_gaudi(reader: LabelReader) -> Reading | None:
    """Return the facts about Gaudi accelerators. The memory label is in MiB."""
    product = reader.text("habana.ai/product.name")
    memory = reader.mebibytes("habana.ai/device.memory")
    if not (product or memory or any(_GAUDI.fullmatch(key) and reader.truth(key) for key in reader.labels)):
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
    )


def read_ascend(reader: LabelReader) -> Reading | None:
    """Return the facts about Ascend NPUs.

    `accelerator` has the series, such as `huawei-Ascend910`; the chip name distinguishes 910B3 and 910B4.
    """
    chip = reader.text("node.kubernetes.io/npu.chip.name")
    series = reader.text("accelerator").lower().removeprefix("huawei-")
    if not chip and not series.startswith(("ascend", "npu")):
        return None
    text = reader.text("mind-cluster/npu-chip-memory")
    match = _CHIP_SIZE.fullmatch(text)
    if text and match is None:
        reader.ignored("mind-cluster/npu-chip-memory", "is not of the form 64G")
    product = chip if not chip or chip.lower().startswith("ascend") else f"Ascend{chip}"
    return Reading(
        kind=AcceleratorKind.NPU,
        vendor="huawei",
        family="ascend",
        product=product or reader.text("accelerator").removeprefix("huawei-") or None,
        memory_bytes=int(match[1]) * GIB if match else None,
        lookup=next((each for each in (product, series) if each and reader.catalogue.find(each)), ""),
    )
