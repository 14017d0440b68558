# SPDX-License-Identifier: Apache-2.0
"""Facts about the hardware of an endpoint by source, and the merge of several sources into a tag."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec

from epp.framework.accelerators.tag import (
    PRECISIONS,
    AcceleratorKind,
    AcceleratorTag,
    AttributeValue,
    Cost,
    Device,
    Partition,
    Performance,
    Routability,
)

PassOrDrain: TypeAlias = Literal["Pass", "Drain"]
"""Whether an endpoint continues to receive requests or drains."""
DrainOrIgnore: TypeAlias = Literal["Drain", "Ignore"]
"""Whether an endpoint drains or its state is ignored."""


class Rank(IntEnum):
    """Precedence of sources for each field; the lowest takes precedence."""

    OPERATOR = 1
    """Configuration or endpoint list."""
    POD = 2
    """Class in annotations or labels of a trusted pod."""
    ALLOCATION = 3
    """DRA claims."""
    SLICE_CLAIM = 4
    """AllocationClaim and Instaslice."""
    ALLOCATOR = 5
    """TensorFusion."""
    CLASS = 6
    """AcceleratorClass."""
    LABELS = 7
    """Node labels of vendors."""
    RESOURCES = 8
    """Resource requests of the pod and resources of the node."""
    CATALOGUE = 9
    """Tables of products and instance types."""
    SELF = 10
    """Default: one device of a class or product without a count."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a tag from one source; None for a missing field."""

    source: str
    """For provenance and warnings: `labels`, `AcceleratorClass/nvidia-h100-80gb`, `ResourceClaim/llm/vllm-a`."""
    rank: Rank
    kind: AcceleratorKind | None = None
    vendor: str | None = None
    family: str | None = None
    model: str | None = None
    product: str | None = None
    devices: tuple[Device, ...] | None = None
    count: int | None = None
    memory_bytes: int | None = None
    """Memory of one device or slice."""
    compute_capability: tuple[int, ...] | None = None
    features: frozenset[str] = frozenset()
    """Added to those of the other sources."""
    fp32: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    int4: float | None = None
    bandwidth_gbps: float | None = None
    partition: Partition | None = None
    per_hour: float | None = None
    spot_per_hour: float | None = None
    per_million_tokens: float | None = None
    cost_tier: str | None = None
    spot: bool | None = None
    state: Routability | None = None
    reason: str | None = None
    resources: frozenset[str] = frozenset()
    """Added to those of the other sources."""
    node: str | None = None
    cluster: str | None = None
    attributes: Mapping[str, AttributeValue] = msgspec.field(default_factory=dict)
    """Added to those of the other sources, name by name."""
    classes: tuple[str, ...] = ()
    """AcceleratorClasses that match or that are declared."""
    warnings: tuple[str, ...] = ()
    """Invalid values with their interpretation; not part of the tag."""
    sources: Mapping[str, str] = {}
    """Source of individual fields that differs from `source`."""

    @property
    def without_figures(self) -> "Facts":
        """Facts without memory, prices and speed, which are those of a whole device."""
        return msgspec.structs.replace(self, **dict.fromkeys(_FIGURES))


_UNITED = {"classes", "features", "resources", "attributes", "state", "reason"}
"""Fields of a tag that combine several sources."""
_SINGLE = [name for name in Facts.__struct_fields__ if name in AcceleratorTag.__struct_fields__ and name not in _UNITED]
_PRICES = ("per_hour", "spot_per_hour", "per_million_tokens")
_FIGURES = ("memory_bytes", "bandwidth_gbps", *PRECISIONS, *_PRICES, "cost_tier")
SEVERITY = (Routability.BLOCKED, Routability.DRAINING, Routability.ROUTABLE, Routability.UNKNOWN)
"""States, the worst first."""


class Merged(msgspec.Struct, frozen=True):
    tag: AcceleratorTag
    conflicts: tuple[str, ...] = ()
    """Contradictions between sources of claims."""
    warnings: tuple[str, ...] = ()
    """Invalid values with their interpretation."""


def merge(facts: Iterable[Facts]) -> Merged:
    """Return the tag: each field comes from the source with the lowest rank, in the given order within a rank.

    Classes, features, resources and attributes are united; the state is the worst of all sources. A source of claims
    for other devices than the first one is ignored, since its figures are those of other devices.
    """
    everything = sorted(facts, key=lambda fact: fact.rank)
    contradicting, conflicts = _contradicting(everything)
    ranked = [fact for fact in everything if fact.source not in contradicting]
    provenance: dict[str, str] = {}

    def first(name: str) -> object:
        for fact in ranked:
            value = getattr(fact, name)
            if value is not None:
                provenance[name] = fact.sources.get(name, fact.source)
                return value
        return None

    def several(names: Iterable[str]) -> dict[str, object]:
        return {name: value for name in names if (value := first(name)) is not None}

    fields = several(_SINGLE)
    tier = first("cost_tier") or ""
    cost = msgspec.convert({**several((*_PRICES, "spot")), "tier": tier}, Cost)
    worst = min(
        (fact for fact in ranked if fact.state is not None),
        key=lambda fact: SEVERITY.index(fact.state or Routability.UNKNOWN),
        default=None,
    )
    if worst is not None:
        provenance["state"] = worst.source
    attributes: dict[str, AttributeValue] = {}
    for fact in reversed(ranked):
        attributes.update(fact.attributes)
    tag = AcceleratorTag(
        **fields,  # type: ignore[arg-type]  # same names and types in both structs
        classes=tuple(dict.fromkeys(name for fact in ranked for name in fact.classes)),
        features=frozenset().union(*(fact.features for fact in ranked)),
        resources=frozenset().union(*(fact.resources for fact in ranked)),
        performance=msgspec.convert(several(PRECISIONS), Performance),
        cost=cost,
        state=Routability.UNKNOWN if worst is None or worst.state is None else worst.state,
        reason="" if worst is None or worst.reason is None else worst.reason,
        attributes=attributes,
        provenance=provenance,
    )
    return Merged(tag, conflicts)


def _contradicting(ranked: list[Facts]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the sources that claim other devices than the first source of claims, with a message for each."""
    claims = [fact for fact in ranked if fact.devices and Rank.ALLOCATION <= fact.rank <= Rank.ALLOCATOR]
    ids = [{device.id for device in fact.devices or ()} for fact in claims]
    others = [fact.source for fact, own in zip(claims, ids, strict=True) if own != ids[0]]
    sentences = (f"{claims[0].source} and {other} claim different devices: the first one counts" for other in others)
    return frozenset(others), tuple(sentences)
