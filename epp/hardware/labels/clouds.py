# SPDX-License-Identifier: Apache-2.0
"""Labels of clouds and autoscalers: product, vendor, number and memory, each in a label of its own."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from epp.framework.accelerators.tag import AcceleratorKind
from epp.framework.quantities import exact_quantity
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.facts import Facts, Rank
from epp.hardware.labels.reading import LabelReader, Reading

_MIB, _GIB = 2**20, 2**30
_LEAST_BYTES, _MOST_BYTES = 2**28, 2**50
"""Memory of a device that is less or more than this is a mistake."""


class _Labels(NamedTuple):
    """Keys of the labels of one cloud; the number and the memory are those of a machine and of one device."""

    product: str = ""
    vendor: str = ""
    number: str = ""
    memory: str = ""
    unit: int = _MIB
    """Bytes of a memory of 1; a memory in GiB is rounded, so that of the product takes precedence."""
    family: str = ""
    """Family of machine types, for products that have generations of one name."""
    always: str = ""
    """Vendor of all devices."""


def _of_aws(prefix: str) -> tuple[_Labels, _Labels]:
    """Return the labels of Karpenter and of EKS Auto Mode, which differ in their domain."""
    gpu, other = f"{prefix}/instance-gpu", f"{prefix}/instance-accelerator"
    return (
        _Labels(f"{gpu}-name", f"{gpu}-manufacturer", f"{gpu}-count", f"{gpu}-memory"),
        _Labels(f"{other}-name", f"{other}-manufacturer", f"{other}-count", family=f"{prefix}/instance-family"),
    )


_AZURE = "karpenter.azure.com/sku-gpu"
_CLOUDS = (
    *_of_aws("karpenter.k8s.aws"),
    *_of_aws("eks.amazonaws.com"),
    _Labels(f"{_AZURE}-name", f"{_AZURE}-manufacturer", f"{_AZURE}-count"),
    # CoreWeave
    _Labels("gpu.nvidia.com/model", "", "gpu.nvidia.com/count", "gpu.nvidia.com/vram", _GIB, always="nvidia"),
    _Labels("gpu.nvidia.com/class", "", "gpu.nvidia.com/count", "gpu.nvidia.com/vram", _GIB, always="nvidia"),
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
_VENDORS = {
    "nvidia": ("nvidia", AcceleratorKind.GPU),
    "amd": ("amd", AcceleratorKind.GPU),
    "habana": ("intel", AcceleratorKind.NPU),
    "aws": ("aws", AcceleratorKind.NPU),
    "qualcomm": ("qualcomm", AcceleratorKind.NPU),
}


def read_clouds(labels: Mapping[str, str], catalogue: Catalogue = CATALOGUE) -> Iterator[Reading]:
    """Yield the facts of each cloud whose labels the node has."""
    for keys in _CLOUDS:
        reader = LabelReader(labels)
        if (found := _read(keys, reader, catalogue)) is not None:
            yield found


def _read(keys: _Labels, reader: LabelReader, catalogue: Catalogue) -> Reading | None:
    text = reader.text(keys.product)
    said = (reader.text(keys.vendor) or keys.always).lower()
    if not text and not reader.text(keys.vendor):
        return None
    memory = _memory(keys, reader)
    lookup = next((each for each in (text, reader.text(keys.family)) if each and catalogue.find(each, memory)), "")
    product = catalogue.find(lookup, memory) if lookup else None
    known = _VENDORS.get(said) or _VENDORS.get(text.lower())
    if known is None and product is not None:
        known = (product.vendor, product.kind)
    if known is None:
        return None
    vendor, kind = known
    return Reading(
        facts=Facts(
            source="labels",
            rank=Rank.LABELS,
            kind=kind,
            vendor=vendor,
            product=text if product is not None or text.lower() not in _VENDORS else None,
            memory_bytes=None if keys.unit == _GIB and product is not None and product.memory_bytes else memory,
        ),
        lookup=lookup,
        device_memory_bytes=memory,
        count=(reader.number(keys.number) or None) if keys.number else None,
        warnings=tuple(reader.warnings),
    )


def _memory(keys: _Labels, reader: LabelReader) -> int | None:
    """Return the bytes of a device; the label has a number of units, or a quantity with a unit such as `16280MiB`."""
    text = reader.text(keys.memory) if keys.memory else ""
    if not text:
        return None
    try:
        size = int(text) * keys.unit if text.isdigit() else int(exact_quantity(text.removesuffix("B")))
    except ValueError:
        size = 0
    if _LEAST_BYTES <= size < _MOST_BYTES:
        return size
    reader.warnings.append(f"label {keys.memory}: {text!r} is not the memory of an accelerator: ignored")
    return None
