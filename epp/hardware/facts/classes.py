# SPDX-License-Identifier: Apache-2.0
"""Facts from an AcceleratorClass, for the endpoints that match it."""

import re
from fractions import Fraction
from math import inf

from epp.framework.accelerators.tag import AcceleratorKind, AttributeValue, Partition
from epp.hardware.catalogue import Catalogue
from epp.hardware.classes.matching import is_of_slices
from epp.hardware.facts import Facts, Rank
from epp.hardware.mig import mig_gpu, parse_mig_profile, partition_of
from epp.hardware.resource_names import maker_of
from epp.kube.objects.limits import memory_bytes
from epp.kube.objects.ome import AcceleratorClass, Capabilities

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_KINDS = {
    "google": AcceleratorKind.TPU,
    "intel": AcceleratorKind.XPU,
    "aws": AcceleratorKind.NPU,
    "qualcomm": AcceleratorKind.NPU,
    "huawei": AcceleratorKind.NPU,
}
"""By vendor, of devices that are no GPUs."""
TIERS = frozenset({"low", "medium", "high"})


def class_facts(each: AcceleratorClass, catalogue: Catalogue, rank: Rank = Rank.CLASS, product: str = "") -> Facts:
    """Return the facts, with figures of a whole device; `product` is that of the endpoint, if known.

    The figures of a class of slices are divided by the share that a slice has of its device.
    """
    spec = each.spec
    part = _partition(each, product)
    compute, memory = (1.0, 1.0) if part is None else (part.compute_fraction, part.memory_fraction)
    figures = spec.capabilities.performance
    sparse = 2.0 if figures.sparse else 1.0

    def whole(figure: Fraction | float | None, share: float) -> float | None:
        return float(figure) / share if figure is not None and 0 < figure < inf else None

    def price(figure: Fraction | None) -> float | None:
        return float(figure) / memory if figure is not None and figure >= 0 else None

    tokens = spec.cost.per_million_tokens
    return Facts(
        source=f"AcceleratorClass/{each.name}",
        rank=rank,
        kind=_kind(each, catalogue),
        vendor=spec.vendor.lower() or None,
        family=spec.family.lower() or None,
        model=spec.model.lower() or None,
        memory_bytes=memory_bytes(spec.capabilities.memory),
        compute_capability=compute_capability(spec.capabilities),
        features=frozenset(feature.lower() for feature in spec.capabilities.features),
        fp32=whole(figures.fp32_tflops, compute),
        fp16=whole(figures.fp16_tflops, compute * sparse),
        fp8=whole(figures.fp8_tflops, compute * sparse),
        int8=whole(figures.int8_tops, compute * sparse),
        int4=whole(figures.int4_tops, compute * sparse),
        bandwidth_gbps=whole(spec.capabilities.memory_bandwidth_gbps, memory),
        partition=part,
        per_hour=price(spec.cost.per_hour),
        spot_per_hour=price(spec.cost.spot_per_hour),
        per_million_tokens=None if tokens is None else float(tokens),
        cost_tier=spec.cost.tier.lower() if spec.cost.tier.lower() in TIERS else None,
        attributes=_attributes(each),
    )


def compute_capability(capabilities: Capabilities) -> tuple[int, ...] | None:
    """Return (9, 0) for 9.0; None for a text that is not a version."""
    text = capabilities.compute_capability.strip()
    return tuple(map(int, text.split("."))) if _VERSION.fullmatch(text) else None


def _partition(each: AcceleratorClass, product: str) -> Partition | None:
    """Return the partition of a class of slices."""
    if not is_of_slices(each):
        return None
    profile = parse_mig_profile(each.spec.resources[0].name)
    return None if profile is None else partition_of(profile, mig_gpu(product or each.spec.model))


def _kind(each: AcceleratorClass, catalogue: Catalogue) -> AcceleratorKind:
    product = catalogue.find(each.spec.model) if each.spec.model else None
    if product is not None:
        return product.kind
    makers = (maker_of(resource.name) for resource in each.spec.resources)
    maker = next((maker for maker in makers if maker is not None), None)
    return _KINDS.get(each.spec.vendor.lower(), AcceleratorKind.GPU) if maker is None else maker.kind


def _attributes(each: AcceleratorClass) -> dict[str, AttributeValue]:
    found = {
        "ome.io/kueueResourceFlavor": each.spec.integration.kueue_resource_flavor,
        "ome.io/volcanoGPUType": each.spec.integration.volcano_gpu_type,
        "ome.io/levelZeroVersion": each.spec.capabilities.level_zero_version,
    }
    return {name: value for name, value in found.items() if value}
