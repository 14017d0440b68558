# SPDX-License-Identifier: Apache-2.0
"""Selection of accelerators for a request: bounds and preferences, and the combination of several layers."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from epp.framework.accelerators.arrays import tag_mask
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, SpotPreference, names_of
from epp.framework.arrays import Mask, all_true, any_true
from epp.framework.candidates import Candidates
from epp.framework.request import DataKey, Request
from epp.framework.request_conditions import Preference


class Selection(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Bounds on accelerators, and preferences among those within the bounds; by default none.

    The fields are documented in `SelectionParameters`. Names are in lower case, MIG profiles are canonical names, and
    prices are in US dollars. `spot_preference` None means `auto`.
    """

    policy: str = ""
    classes: tuple[str, ...] = ()
    excluded_classes: frozenset[str] = frozenset()
    families: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    required_features: frozenset[str] = frozenset()
    min_memory_bytes: int = 0
    max_memory_bytes: int | None = None
    min_total_memory_bytes: int = 0
    min_compute_capability: tuple[int, ...] = ()
    min_bandwidth_gbps: float = 0.0
    min_performance: tuple[tuple[str, float], ...] = ()
    """TFLOPS by precision, in the order of the names."""
    node_selector: frozenset[tuple[str, str]] = frozenset()
    """Names and values of node labels."""
    max_endpoint_cost_per_hour: float | None = None
    max_device_cost_per_hour: float | None = None
    max_cost_per_million_tokens: float | None = None
    spot_preference: SpotPreference | None = None
    mig_profiles: tuple[str, ...] = ()
    excluded_mig_profiles: frozenset[str] = frozenset()
    min_compute_slices: int = 0
    whole_device_only: bool = False
    min_tflops: float = 0.0
    preferred_precisions: tuple[str, ...] = ()
    preference_order: tuple[Preference, ...] = ()
    class_stickiness_seconds: float = 0.0

    @property
    def caps_cost(self) -> bool:
        """Whether it has a maximum price."""
        return any(getattr(self, name) is not None for name in _COST_CAPS)

    @property
    def has_bounds(self) -> bool:
        """Whether it rejects any accelerator."""
        return bool(self.kinds) or self._has_bounds_beyond_kinds

    @property
    def wants_accelerator(self) -> bool:
        """Whether it rejects CPUs: with any bound, except kinds that include CPUs."""
        return self._has_bounds_beyond_kinds or (bool(self.kinds) and AcceleratorKind.CPU not in self.kinds)

    @property
    def _has_bounds_beyond_kinds(self) -> bool:
        return any(getattr(self, name) for name in _BOUNDS) or any(getattr(self, name) is not None for name in _CAPS)


ANY = Selection()

_ALLOW_LISTS = ("classes", "families", "vendors", "kinds", "models", "resources", "mig_profiles")
_UNITED = ("excluded_classes", "excluded_mig_profiles", "node_selector")
_EXCLUDED_BY = {"classes": "excluded_classes", "mig_profiles": "excluded_mig_profiles"}
"""Exclusion by allow list."""
_MINIMUMS = tuple(
    name
    for name in Selection.__struct_fields__
    if (name.startswith("min_") and name != "min_performance") or name == "whole_device_only"
)
_CAPS = tuple(name for name in Selection.__struct_fields__ if name.startswith("max_"))
_COST_CAPS = tuple(name for name in _CAPS if "_cost_" in name)
_PREFERENCES = ("policy", "preferred_precisions", "preference_order", "class_stickiness_seconds")
_BOUNDS = tuple(
    name
    for name in (*_ALLOW_LISTS, *_UNITED, *_MINIMUMS, "min_performance", "required_features")
    if name not in {"kinds", "min_tflops"}
)


def combined(lower: Selection, higher: Selection) -> Selection:
    """Combine two layers: lists and names of the higher layer replace those of the lower one.

    Exclusions and node labels are united, and the stricter one of two minimums or caps applies.
    """
    fields = _stricter(lower, higher)
    for name in (*_ALLOW_LISTS, "required_features", "spot_preference", *_PREFERENCES):
        fields[name] = getattr(higher, name) or getattr(lower, name)
    return Selection(**fields)  # type: ignore[arg-type]  # fields of the same struct


class Refusal(msgspec.Struct, frozen=True):
    """A requested value that the bounds do not allow."""

    field: str
    wished: tuple[str, ...]
    allowed: tuple[str, ...]


class Tightened(msgspec.Struct, frozen=True):
    """Bounds tightened by a client, and requested values that were refused because they would loosen the bounds."""

    selection: Selection
    refused: tuple[Refusal, ...] = ()


def tightened(bounds: Selection, wish: Selection) -> Tightened:
    """Combine the bounds with those of a client, which can only tighten them.

    Allow lists are intersected; without a common entry, the list of `bounds` stays. Excluded names are refused.
    Required features are united; preferences are replaced.
    """
    fields = _stricter(bounds, wish)
    refused: list[Refusal] = []
    for name in _ALLOW_LISTS:
        allowed, wished = getattr(bounds, name), getattr(wish, name)
        excluded = getattr(bounds, _EXCLUDED_BY[name]) if name in _EXCLUDED_BY else frozenset()
        common: dict[str, tuple[str, ...]] = {}
        for one in wished:
            if not allowed or one in allowed:
                common[one] = () if one in excluded else (one,)
            else:
                common[one] = _common_families(one, allowed) if name == "families" else ()
        outside = tuple(one for one, found in common.items() if not found)
        if outside:
            refused.append(Refusal(name, outside, allowed))
        kept = tuple(dict.fromkeys(one for found in common.values() for one in found))
        fields[name] = kept or allowed
    fields["required_features"] = bounds.required_features | wish.required_features
    fields["spot_preference"] = bounds.spot_preference
    if wish.spot_preference not in {None, bounds.spot_preference}:
        allowed = (bounds.spot_preference or "auto",)
        refused.append(Refusal("spot_preference", (str(wish.spot_preference),), allowed))
    for name in _PREFERENCES:
        fields[name] = getattr(wish, name) or getattr(bounds, name)
    return Tightened(Selection(**fields), tuple(refused))  # type: ignore[arg-type]  # fields of the same struct


def _stricter(one: Selection, other: Selection) -> dict[str, object]:
    """Return the stricter exclusions, node labels, minimums and caps of both."""
    fields: dict[str, object] = {name: getattr(one, name) | getattr(other, name) for name in _UNITED}
    figures = sorted((*one.min_performance, *other.min_performance))
    fields["min_performance"] = tuple(dict(figures).items())  # the larger of two comes last
    fields |= {name: max(getattr(one, name), getattr(other, name)) for name in _MINIMUMS}
    for name in _CAPS:
        fields[name] = min((cap for cap in (getattr(one, name), getattr(other, name)) if cap is not None), default=None)
    return fields


def _common_families(wished: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the more specific one of matching names: `nvidia-hopper` for this and `hopper`."""
    if any(wished.endswith(f"-{family}") for family in allowed):
        return (wished,)
    return tuple(family for family in allowed if family.endswith(f"-{wished}"))


class Selections(msgspec.Struct, frozen=True):
    """Selections for one request, by profile."""

    default: Selection = ANY
    by_profile: Mapping[str, Selection] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Messages about requested values that were refused."""

    def of(self, profile: str) -> Selection:
        return self.by_profile.get(profile, self.default)


@runtime_checkable
class MakesSelections(Protocol):
    """A plugin that makes selections for requests."""

    @property
    def selections(self) -> Iterable[Selection]:
        """Selections of its configuration and of its objects."""


ACCELERATOR_SELECTION: DataKey[Selections] = DataKey("accelerator-selection", "accelerator-selection-producer")
"""Bounds and preferences for the request, from configuration and headers."""

SERVED_CLASS: DataKey[str] = DataKey("served-class", "served-class-producer")
"""Class that last served the session, or the tenant, of the request; missing if unknown."""


def class_of(tag: AcceleratorTag) -> str:
    """Return the primary class in lower case, or else the model, followed by the slice; empty for unknown hardware."""
    name = next(iter(names_of(tag)), "")
    return f"{name} {tag.partition.profile}".strip() if name else ""


def of_served_class(request: Request, candidates: Candidates) -> Mask | None:
    """Mark the candidates of the class that served the request's session; None if it applies to all or none."""
    served = request.get(SERVED_CLASS)
    if not served:
        return None
    same = tag_mask(candidates, _is, served)
    return None if all_true(same) or not any_true(same) else same


def _is(tag: AcceleratorTag, name: str) -> bool:
    return class_of(tag) == name
