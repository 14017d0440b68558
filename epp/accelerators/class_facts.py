"""What an AcceleratorClass says of the endpoints that are of it."""

import re
from collections.abc import Iterator
from fractions import Fraction
from math import inf

from epp.accelerators import affinity
from epp.accelerators.catalogue import Catalogue
from epp.accelerators.classes import is_of_slices
from epp.accelerators.facts import Facts, Rank
from epp.accelerators.mig import mig_gpu, parse_mig_profile, partition_of
from epp.accelerators.objects.ome import AcceleratorClass, Capabilities
from epp.framework.accelerators import AcceleratorKind, AttributeValue, Partition
from epp.framework.device_expressions import DeviceExpression

_BARE_GB_BELOW = 2**20
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_TIERS = frozenset({"low", "medium", "high"})


def class_facts(each: AcceleratorClass, catalogue: Catalogue, rank: Rank = Rank.CLASS, product: str = "") -> Facts:
    """Return the facts, figures of a whole device. `product` is the endpoint's, where it is known better.

    A class of slices has the figures of a slice: those of the whole device follow from the slice's share of it.
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
        memory_bytes=memory_of(spec.capabilities.memory),
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
        cost_tier=spec.cost.tier.lower() if spec.cost.tier.lower() in _TIERS else None,
        attributes=_attributes(each),
    )


def memory_of(memory: Fraction | None) -> int | None:
    """Return bytes; a number too small to be bytes is one of GB, as most people write it."""
    if memory is None or memory <= 0:
        return None
    return int(memory * 2**30 if memory < _BARE_GB_BELOW else memory)


def compute_capability(capabilities: Capabilities) -> tuple[int, ...] | None:
    """Return (9, 0) for 9.0; None for what is no version."""
    text = capabilities.compute_capability.strip()
    return tuple(map(int, text.split("."))) if _VERSION.fullmatch(text) else None


def doubts_of(each: AcceleratorClass) -> Iterator[str]:
    """Yield what the class says that is not as it should be, and how it is read; the rest of it counts."""
    memory = each.spec.capabilities.memory
    if memory is not None and 0 < memory < _BARE_GB_BELOW:
        number = f"{float(memory):g}"
        yield f"memoryGB {number} would be {number} bytes, it is read as {number} GB; write {number}Gi"
    required = each.spec.discovery.affinity.node_affinity.required
    if required is not None:
        yield from affinity.problems_of(required)
    yield from (f"{fault}; it selects nothing" for fault in _expression_faults(each))
    yield from (f"{fault}; it is left out" for fault in _value_faults(each))


def faults_of(each: AcceleratorClass) -> Iterator[str]:
    """Yield what the class says that is not understood and so has no effect: field, value and remedy."""
    required = each.spec.discovery.affinity.node_affinity.required
    if required is not None:
        yield from (f"spec.discovery.affinity: {fault}" for fault in affinity.faults_of(required))
    yield from _expression_faults(each)
    yield from _value_faults(each)


def device_expression(each: AcceleratorClass) -> DeviceExpression | None:
    """Return what selects devices of the class, if it has that; raises ValueError that names field and remedy."""
    dra = each.spec.discovery.dra
    if dra is None or not dra.expression:
        return None
    return DeviceExpression(dra.expression, place="spec.discovery.dra.expression")


def _expression_faults(each: AcceleratorClass) -> Iterator[str]:
    try:
        device_expression(each)
    except ValueError as error:
        yield str(error)


def _value_faults(each: AcceleratorClass) -> Iterator[str]:
    capabilities, tier = each.spec.capabilities, each.spec.cost.tier
    if capabilities.memory is not None and capabilities.memory <= 0:
        yield f"spec.capabilities.memoryGB is {float(capabilities.memory):g}: write a size above 0, such as 80Gi"
    if capabilities.compute_capability and compute_capability(capabilities) is None:
        yield f"spec.capabilities.computeCapability is {capabilities.compute_capability!r}: write a version like 9.0"
    if tier and tier.lower() not in _TIERS:
        yield f"spec.cost.tier is {tier!r}: write low, medium or high"


def _partition(each: AcceleratorClass, product: str) -> Partition | None:
    """Return the slice that endpoints of the class have, for a class of slices."""
    if not is_of_slices(each):
        return None
    profile = parse_mig_profile(each.spec.resources[0].name)
    return None if profile is None else partition_of(profile, mig_gpu(product or each.spec.model))


def _kind(each: AcceleratorClass, catalogue: Catalogue) -> AcceleratorKind:
    product = catalogue.find(each.spec.model) if each.spec.model else None
    if product is not None:
        return product.kind
    return {"google": AcceleratorKind.TPU, "intel": AcceleratorKind.XPU}.get(
        each.spec.vendor.lower(), AcceleratorKind.GPU
    )


def _attributes(each: AcceleratorClass) -> dict[str, AttributeValue]:
    found = {
        "ome.io/kueueResourceFlavor": each.spec.integration.kueue_resource_flavor,
        "ome.io/volcanoGPUType": each.spec.integration.volcano_gpu_type,
        "ome.io/levelZeroVersion": each.spec.capabilities.level_zero_version,
    }
    return {name: value for name, value in found.items() if value}
