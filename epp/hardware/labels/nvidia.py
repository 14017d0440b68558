# SPDX-License-Identifier: Apache-2.0
"""Labels of NVIDIA's GPU feature discovery."""

import re
from collections.abc import Mapping

from epp.framework.accelerators.tag import AcceleratorKind, Partition, Sharing
from epp.framework.quantities import exact_quantity
from epp.hardware.catalogue import CATALOGUE, Catalogue, family_of, features_of
from epp.hardware.labels.reading import MOST_MEMORY, LabelReader, Reading
from epp.hardware.mig import UNKNOWN_SLICE, MigProfile, equal_share, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.mig.partition import profile_fault

_MIXED = re.compile(r"nvidia\.com/mig-(?P<profile>.+)\.count")
_SHARINGS = {"mps": Sharing.MPS, "time-slicing": Sharing.TIME_SLICING}


def read_nvidia(labels: Mapping[str, str], catalogue: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts; None without labels of a GPU.

    `nvidia.com/gpu.memory` is in MiB. With MIG strategy single, product, memory and count describe slices; with mixed
    they describe whole GPUs, and each profile has its own labels. The memory of a slice comes from its profile; that of
    a shared GPU is divided by the number of sharers.
    """
    reader = LabelReader(labels)
    product = reader.text("nvidia.com/gpu.product")
    memory = _memory(reader)
    count = reader.number("nvidia.com/gpu.count")
    capability = _compute_capability(reader)
    if not (product or memory or count or capability or reader.truth("nvidia.com/gpu.present")):
        return None
    profile = _single_profile(reader, product, catalogue)
    sliced = _is_sliced(reader, product)
    partition = UNKNOWN_SLICE if sliced and not profile else _partition(reader, product, profile, memory, catalogue)
    whole = not sliced and (partition is None or partition.kind is not Sharing.VGPU)
    mig = _mixed_profiles(reader, product, memory, catalogue)
    if profile and count:
        mig[profile.name] = count
    return Reading(
        kind=AcceleratorKind.GPU,
        vendor="nvidia",
        family=_family(reader, product, capability, catalogue),
        product=product or None,
        memory_bytes=_share(profile, memory, partition),
        compute_capability=capability,
        features=_features(reader, capability, sliced=sliced),
        partition=partition,
        lookup=product,
        device_memory_bytes=memory if whole else None,
        node_count=count,
        mig=mig,
        warnings=tuple(reader.warnings),
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
        reader.warnings.append(f"label {key}: {text!r} is not a whole number of MiB: ignored")
        return None
    if not 0 < size <= MOST_MEMORY:
        reader.warnings.append(f"label {key}: {text!r} is not the memory of a GPU in MiB: ignored")
        return None
    reader.warnings.append(f"label {key}: {text!r} has a unit, although the label is in MiB: read as a quantity")
    return size


def _share(profile: MigProfile | None, memory: int | None, partition: Partition | None) -> int | None:
    """Return the memory of one endpoint: that of its slice, or its share of the GPU."""
    memory = profile.memory_bytes if profile else memory
    return memory // partition.sharers if memory and partition else memory


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


def _is_sliced(reader: LabelReader, product: str) -> bool:
    """Return whether all GPUs of the node are slices, with MIG strategy single."""
    return reader.text("nvidia.com/mig.strategy").lower() != "mixed" and "-mig-" in product.lower()


def _single_profile(reader: LabelReader, product: str, catalogue: Catalogue) -> MigProfile | None:
    """Return the profile of all slices of the node, with MIG strategy single."""
    if not _is_sliced(reader, product):
        return None
    gpu, _, name = product.lower().rpartition("-mig-")
    name = name.removesuffix("-shared")
    if fault := profile_fault(name, gpu, catalogue=catalogue):
        reader.warnings.append(f"label nvidia.com/gpu.product: {product!r:.80}: the profile {fault}: ignored")
        return None
    return parse_mig_profile(product)


def _partition(
    reader: LabelReader, product: str, profile: MigProfile | None, memory: int | None, catalogue: Catalogue
) -> Partition | None:
    sharing, sharers = _sharing(reader, product)
    if profile:
        return partition_of(profile, mig_gpu(product, catalogue=catalogue), sharers=sharers)
    if reader.truth("nvidia.com/vgpu.present"):
        known = catalogue.find(product)
        whole = known.memory_bytes if known else None
        fraction = min(memory / whole, 1.0) if memory and whole else 1.0
        return Partition(kind=Sharing.VGPU, compute_fraction=fraction, memory_fraction=fraction)
    return None if sharing is None else equal_share(sharing, sharers)


def _sharing(reader: LabelReader, product: str) -> tuple[Sharing | None, int]:
    """Return sharing strategy and number of sharers; the default strategy is time slicing."""
    sharers = max(reader.number("nvidia.com/gpu.replicas") or 1, 1)
    named = _SHARINGS.get(reader.text("nvidia.com/gpu.sharing-strategy").lower())
    if named is None and (sharers > 1 or product.upper().endswith("-SHARED")):
        named = Sharing.TIME_SLICING
    return named, sharers


def _family(reader: LabelReader, product: str, capability: tuple[int, ...] | None, catalogue: Catalogue) -> str | None:
    """Return the family by compute capability or catalogue, since older labels have ampere for ada-lovelace."""
    if capability:
        return family_of(capability) or None
    if catalogue.find(product):
        return None
    return reader.text("nvidia.com/gpu.family").lower() or None


def _features(reader: LabelReader, capability: tuple[int, ...] | None, *, sliced: bool) -> frozenset[str]:
    features = {"cuda", *features_of(capability or ())}
    if reader.truth("nvidia.com/mps.capable"):
        features.add("mps")
    if not sliced:
        features |= {"mig"} if reader.truth("nvidia.com/mig.capable") else set()
        features |= {"nvlink"} if reader.truth("nvidia.com/nvlink") else set()
    return frozenset(features)


def _mixed_profiles(reader: LabelReader, product: str, memory: int | None, catalogue: Catalogue) -> dict[str, int]:
    """Return the number of slices by profile, without zeros and impossible profiles."""
    counts: dict[str, int] = {}
    for key in reader.labels:
        match = _MIXED.fullmatch(key)
        profile = parse_mig_profile(match["profile"]) if match else None
        fault = profile_fault(match["profile"], product, memory, catalogue) if match else ""
        if fault:
            reader.warnings.append(f"label {key}: the profile {fault}: ignored")
        elif profile and (number := reader.number(key)):
            counts[profile.name] = number
    return counts
