# SPDX-License-Identifier: Apache-2.0
"""Check of accelerators against the bounds of a selection, with the reason for a rejection."""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from epp.framework.accelerators.selection import Selection
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Sharing, names_of
from epp.framework.arrays import Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.quantities import NOMINAL_TOLERANCE, canonical_mig_name, compute_slices, gib_text, memory_suffices
from epp.framework.snapshot import ACCELERATOR

NO_ACCELERATOR = "no-accelerator"
"""Reason for the rejection of CPUs by any bound on accelerators."""

_EVERY_SLICE = 7
_ROUNDING = 1 + 1e-9
"""Tolerance for sums of prices, so that 3 * 0.1 does not exceed 0.3."""

Finding = tuple[str, str | None]
"""A violated bound and the reason, which is None for an unknown property."""


def rejection(tag: AcceleratorTag, selection: Selection, unknown_passes: frozenset[str] = frozenset()) -> str | None:
    """Return the reason for a rejection, such as `memory 16 GiB is below 40 GiB`; None if there is none.

    Unknown properties are rejected, except by the bounds in `unknown_passes`, which are named as in files: `minMemory`.
    """
    found = _verdict(tag, selection, unknown_passes)
    if found is None:
        return None
    bound, reason = found
    return reason or f"unknown whether within {bound}"


def fit_mask(candidates: Candidates, selection: Selection, unknown_passes: frozenset[str] = frozenset()) -> Mask:
    """Return true for each candidate within the bounds.

    Equal accelerators are checked once, because each request can have its own bounds.
    """
    if not selection.has_bounds:
        return np.ones(len(candidates), dtype=np.bool_)
    records = candidates.snapshot.records(ACCELERATOR)
    return records.derive(_fits, records.derive(_grouped), selection, unknown_passes)[candidates.slots]


def count_mismatches(
    counts: Counter[str],
    candidates: Candidates,
    mask: Mask,
    selection: Selection,
    unknown_passes: frozenset[str] = frozenset(),
) -> None:
    """Count the candidates that `fit_mask` drops by the first violated bound.

    The key is `minMemory-unknown` for unknown memory, and `no-accelerator` for a CPU.
    """
    records = candidates.snapshot.records(ACCELERATOR)
    numbers, names = records.derive(_mismatches, records.derive(_grouped), selection, unknown_passes)
    found = np.bincount(numbers[candidates.slots[~mask]], minlength=len(names))
    for name, count in zip(names, found.tolist(), strict=True):
        if name and count:
            counts[name] += count


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Groups of tags that are equal for all selections: the first tag of each, and the group of each slot."""

    tags: tuple[AcceleratorTag, ...]
    numbers: Positions


def _fits(_: tuple[AcceleratorTag, ...], groups: _Groups, selection: Selection, unknown_passes: frozenset[str]) -> Mask:
    fits = [rejection(tag, selection, unknown_passes) is None for tag in groups.tags]
    return np.array(fits, dtype=np.bool_)[groups.numbers]


def _mismatches(
    _: tuple[AcceleratorTag, ...], groups: _Groups, selection: Selection, unknown_passes: frozenset[str]
) -> tuple[Positions, tuple[str, ...]]:
    """Return the number of the mismatch of each slot, and the mismatches by number; empty for no mismatch."""
    found: list[str] = []
    for tag in groups.tags:
        bound, reason = _verdict(tag, selection, unknown_passes) or ("", "")
        found.append(bound if reason is not None else f"{bound}-unknown")
    names = tuple(dict.fromkeys(found))
    return np.array([names.index(name) for name in found], dtype=np.intp)[groups.numbers], names


def _verdict(tag: AcceleratorTag, selection: Selection, unknown_passes: frozenset[str]) -> Finding | None:
    """Return the first violated bound that counts; None if there is none."""
    if tag.kind is AcceleratorKind.CPU:
        return (NO_ACCELERATOR, NO_ACCELERATOR) if selection.wants_accelerator else None
    for check in (_identity, _memory, _capabilities, _slices, _cost):
        for bound, reason in check(tag, selection):
            if reason is not None or bound not in unknown_passes:
                return bound, reason
    return None


def _grouped(tags: tuple[AcceleratorTag, ...]) -> _Groups:
    numbers: dict[Hashable, int] = {}
    members: list[int] = []
    groups = np.empty(len(tags), dtype=np.intp)
    for slot, tag in enumerate(tags):
        number = numbers.setdefault(_compared_properties(tag), len(members))
        if number == len(members):
            members.append(slot)
        groups[slot] = number
    return _Groups(tuple(tags[slot] for slot in members), groups)


def _compared_properties(tag: AcceleratorTag) -> Hashable:
    """Return all properties of the tag that `rejection` reads."""
    part = tag.partition
    return (
        (tag.kind, tag.vendor, tag.family, tag.model, tag.classes, tag.resources, tag.features, tag.count),
        (tag.memory_bytes, tag.compute_capability, tag.cost, tag.bandwidth_gbps, tag.performance),
        (part.kind, part.profile, part.compute_slices, part.compute_fraction, part.memory_fraction),
    )


def _identity(tag: AcceleratorTag, selection: Selection) -> Iterator[Finding]:
    classes = frozenset(names_of(tag))
    if selection.excluded_classes:
        excluded = classes & selection.excluded_classes
        if not classes or excluded:
            yield "excludedClasses", f"class {min(excluded)} is excluded" if excluded else None
    if selection.classes and classes.isdisjoint(selection.classes):
        yield "acceleratorClasses", _no_match("class", sorted(classes), selection.classes)
    families = [tag.family, f"{tag.vendor}-{tag.family}"] if tag.family else []
    if selection.families and not set(families) & set(selection.families):
        yield "architectureFamilies", _no_match("family", families[:1], selection.families)
    for bound, what, own, allowed in (
        ("vendors", "vendor", tag.vendor, selection.vendors),
        ("models", "model", tag.model, selection.models),
        ("kinds", "kind", "" if tag.kind is AcceleratorKind.UNKNOWN else tag.kind.value, selection.kinds),
    ):
        if allowed and own not in allowed:
            yield bound, _no_match(what, [own] if own else [], allowed)
    if selection.resources and tag.resources.isdisjoint(selection.resources):
        yield "resources", _no_match("resource", sorted(tag.resources), selection.resources)


def _no_match(what: str, own: list[str], allowed: tuple[str, ...]) -> str | None:
    return f"{what} {', '.join(own)} is not among {', '.join(allowed)}" if own else None


def _memory(tag: AcceleratorTag, selection: Selection) -> Iterator[Finding]:
    have, total = tag.memory_bytes, tag.total_memory_bytes
    least, most, least_total = selection.min_memory_bytes, selection.max_memory_bytes, selection.min_total_memory_bytes
    if least and (have is None or not memory_suffices(have, least)):
        yield "minMemory", None if have is None else f"memory {gib_text(have)} is below {gib_text(least)}"
    if most is not None and (have is None or have > most * (1 + NOMINAL_TOLERANCE)):
        yield "maxMemory", None if have is None else f"memory {gib_text(have)} is above {gib_text(most)}"
    if least_total and (total is None or not memory_suffices(total, least_total)):
        reason = None if total is None else f"total memory {gib_text(total)} is below {gib_text(least_total)}"
        yield "minTotalMemory", reason


def _capabilities(tag: AcceleratorTag, selection: Selection) -> Iterator[Finding]:
    have, least = tag.compute_capability, selection.min_compute_capability
    pairs = tuple(zip_longest(have, least, fillvalue=0))  # so that `9` equals `9.0`
    if least and (not have or tuple(one for one, _ in pairs) < tuple(other for _, other in pairs)):
        texts = [".".join(map(str, version)) for version in (have, least)]
        yield "minArchitectureVersion", f"compute capability {texts[0]} is below {texts[1]}" if have else None
    bandwidth = (tag.bandwidth_gbps or 0.0) * tag.partition.memory_fraction
    figures = [("minMemoryBandwidthGBps", "memory bandwidth", bandwidth, selection.min_bandwidth_gbps)]
    for precision, figure in selection.min_performance:
        figures.append(("minPerformance", f"TFLOPS in {precision}", tag.device_tflops(precision), figure))
    for bound, what, own, wanted in figures:
        if wanted and own < wanted * (1 - NOMINAL_TOLERANCE):
            yield bound, f"{what} {own:g} is below {wanted:g}" if own > 0 else None
    missing = selection.required_features - tag.features
    if missing:
        yield "requiredFeatures", f"lacks {', '.join(sorted(missing))}" if tag.features else None


def _slices(tag: AcceleratorTag, selection: Selection) -> Iterator[Finding]:
    part = tag.partition
    unknown = not tag.has_accelerator and part.kind is Sharing.NONE
    profile = canonical_mig_name(part.profile) or ""
    sliced = part.kind is Sharing.MIG
    if selection.whole_device_only and (unknown or part.kind is not Sharing.NONE):
        yield "wholeDeviceOnly", None if unknown else f"is not a whole device but shared by {part.kind.value}"
    if selection.mig_profiles and (unknown or profile not in selection.mig_profiles):
        own = [profile] if profile else [] if unknown or sliced else ["none"]
        yield "migProfiles", _no_match("MIG profile", own, selection.mig_profiles)
    if selection.excluded_mig_profiles:
        if profile in selection.excluded_mig_profiles:
            yield "excludedMigProfiles", f"MIG profile {profile} is excluded"
        elif unknown or (sliced and not profile):
            yield "excludedMigProfiles", None
    if selection.min_compute_slices:
        slices = part.compute_slices or compute_slices(profile) or part.compute_fraction * _EVERY_SLICE
        unknown = unknown or (sliced and not (part.compute_slices or profile))
        if unknown or slices < selection.min_compute_slices:
            reason = None if unknown else f"{slices:g} compute slices are fewer than {selection.min_compute_slices}"
            yield "minComputeSlices", reason


def _cost(tag: AcceleratorTag, selection: Selection) -> Iterator[Finding]:
    whole = tag.cost_per_hour(selection.spot_preference or "auto")
    each, tokens = None if whole is None else whole / max(tag.count, 1), tag.cost.per_million_tokens
    for bound, what, cap, price in (
        ("maxCostPerHour", "an hour", selection.max_endpoint_cost_per_hour, whole),
        ("maxCostPerHour", "an hour for each device", selection.max_device_cost_per_hour, each),
        ("maxCostPerMillionTokens", "for a million tokens", selection.max_cost_per_million_tokens, tokens),
    ):
        if cap is not None and (price is None or price > cap * _ROUNDING):
            yield bound, None if price is None else f"${price:g} {what} is more than ${cap:g}"
