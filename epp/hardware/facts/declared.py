# SPDX-License-Identifier: Apache-2.0
"""Facts that users declare: in the endpoint list, in overrides, or by an AcceleratorClass."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from fractions import Fraction
from math import inf

import msgspec

from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind, Device, Sharing
from epp.framework.endpoint import Endpoint
from epp.framework.quantities import parse_memory
from epp.hardware.catalogue import Catalogue
from epp.hardware.classes import is_of_slices
from epp.hardware.facts.merge import Facts, Rank
from epp.hardware.mig import UNKNOWN_SLICE, equal_share, mig_gpu, parse_mig_profile, partition_of, profile_fault
from epp.hardware.resources import maker_of
from epp.kube.objects.limits import BARE_GB_BELOW, memory_bytes
from epp.kube.objects.ome import TIERS, AcceleratorClass, compute_capability

_KINDS = {
    "google": AcceleratorKind.TPU,
    "intel": AcceleratorKind.XPU,
    "aws": AcceleratorKind.NPU,
    "qualcomm": AcceleratorKind.NPU,
    "huawei": AcceleratorKind.NPU,
}
"""Kind of devices by vendor; the default is GPU."""
ENDPOINT_LIST = "endpoint list"
OVERRIDE = "override "
"""Prefix of the source of an override, followed by its number, which starts at 1."""
CLASS_NAMES_ON_PODS = ("ome.io/accelerator-class", "ome.ai/accelerator-class", "inference.optimization/acceleratorName")
"""Annotations or labels with the AcceleratorClass of a pod."""


def class_facts(each: AcceleratorClass, catalogue: Catalogue, rank: Rank = Rank.CLASS, product: str = "") -> Facts:
    """Return the facts with figures of a whole device; `product` is that of the endpoint, if known.

    Figures of a class of slices are divided by the share of a slice in its device.
    """
    spec = each.spec
    profile = parse_mig_profile(spec.resources[0].name) if is_of_slices(each) else None
    part = None if profile is None else partition_of(profile, mig_gpu(product or spec.model))
    compute, memory = (1.0, 1.0) if part is None else (part.compute_fraction, part.memory_fraction)
    figures = spec.capabilities.performance
    sparse = 2.0 if figures.sparse else 1.0

    def whole(figure: Fraction | float | None, share: float) -> float | None:
        return float(figure) / share if figure is not None and 0 < figure < inf else None

    def price(figure: Fraction | None) -> float | None:
        return float(figure) / memory if figure is not None and figure >= 0 else None

    tokens = spec.cost.per_million_tokens
    attributes = {
        "ome.io/kueueResourceFlavor": spec.integration.kueue_resource_flavor,
        "ome.io/volcanoGPUType": spec.integration.volcano_gpu_type,
        "ome.io/levelZeroVersion": spec.capabilities.level_zero_version,
    }
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
        attributes={name: value for name, value in attributes.items() if value},
    )


def _kind(each: AcceleratorClass, catalogue: Catalogue) -> AcceleratorKind:
    product = catalogue.find(each.spec.model) if each.spec.model else None
    makers = filter(None, (maker_of(resource.name) for resource in each.spec.resources))
    known = product or next(makers, None)
    return _KINDS.get(each.spec.vendor.lower(), AcceleratorKind.GPU) if known is None else known.kind


def is_declaration(fact: Facts) -> bool:
    """Return whether the facts are a declaration by the operator, not those of the class in a declaration."""
    return fact.rank is Rank.OPERATOR and (fact.source == ENDPOINT_LIST or fact.source.startswith(OVERRIDE))


class AcceleratorOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Accelerator of matching endpoints; at least one of endpoint, labels and node is required."""

    accelerator: AcceleratorDeclaration
    """Accelerator of these endpoints."""
    endpoint: str = ""
    """Pattern for `name` or `namespace/name`, with `*` and `?`."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Labels of the endpoint; all must match."""
    node: str = ""
    """Pattern for the name of the node."""

    def __post_init__(self) -> None:
        if not (self.endpoint or self.labels or self.node):
            raise ValueError("an override has no condition: write endpoint ('*' for all), labels or node")

    def fits(self, endpoint: Endpoint, node: str) -> bool:
        name = endpoint.id if "/" in self.endpoint else endpoint.name
        return (
            (not self.endpoint or fnmatchcase(name, self.endpoint))
            and (not self.node or fnmatchcase(node, self.node))
            and all(endpoint.labels.get(key) == value for key, value in self.labels.items())
        )


def declared_facts(
    declaration: AcceleratorDeclaration,
    source: str,
    classes: Mapping[str, AcceleratorClass],
    catalogue: Catalogue,
    rank: Rank = Rank.OPERATOR,
) -> list[Facts]:
    """Return the facts of the declaration, then those of its class or product."""
    warnings: list[str] = []
    name = declaration.accelerator_class
    product = catalogue.find(name) if name and name not in classes else None
    if name and product is None and name not in classes:
        warnings.append(f"{source}: {name!r} is neither an AcceleratorClass nor a product of the catalogue; ignored")
    model = classes[name].spec.model if name in classes else name
    profile_error = profile_fault(declaration.profile, model) if declaration.profile else ""
    profile, sharers = None, declaration.sharers or 1
    partition = equal_share(Sharing.TIME_SLICING, sharers) if sharers > 1 else None
    if profile_error:
        warnings.append(f"{source}: profile {profile_error}; it is ignored")
        partition = UNKNOWN_SLICE
    elif (profile := parse_mig_profile(declaration.profile)) is not None:
        partition = partition_of(profile, mig_gpu(model) if model else None, sharers=sharers)
    memory = _memory(declaration.memory, warnings, source)
    if memory is None and profile is not None:
        memory = profile.memory_bytes // sharers
    facts = [
        Facts(
            source=source,
            rank=rank,
            classes=(name,) if name in classes else (),
            warnings=tuple(warnings),
            kind=declaration.kind,
            count=declaration.count,
            memory_bytes=memory,
            partition=partition,
            per_hour=declaration.cost_per_hour,
            spot=declaration.spot,
        )
    ]
    if name in classes:
        facts.append(class_facts(classes[name], catalogue, rank))
    elif product is not None:
        facts.append(msgspec.structs.replace(product.facts(partition=partition), rank=rank))
    if profile_error:
        facts = [facts[0], *(fact.without_figures for fact in facts[1:])]
    if declaration.device:
        facts.append(Facts(source=source, rank=Rank.SELF, devices=(Device(id=declaration.device),)))
    if len(facts) > 1:  # a class or product without a count means one device
        facts.append(Facts(source=source, rank=Rank.SELF, count=1))
    return facts


def class_on_pod(*texts: Mapping[str, str]) -> str:
    """Return the first class in annotations or labels; empty for none."""
    return next((text[key] for text in texts for key in CLASS_NAMES_ON_PODS if text.get(key)), "")


def _memory(text: str, warnings: list[str], source: str) -> int | None:
    if not text:
        return None
    bare = text.strip()
    if bare.replace(".", "", 1).isdecimal() and float(bare) < BARE_GB_BELOW:
        warnings.append(f"{source}: memory is {text!r}, which means bytes: read as {bare}Gi; write {bare}Gi")
    return parse_memory(text)
