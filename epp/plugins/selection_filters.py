# SPDX-License-Identifier: Apache-2.0
"""Filters by bounds on accelerators: those of the configuration, and those of the request."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from epp.framework import (
    ACCELERATOR,
    ACCELERATOR_SELECTION,
    AcceleratorTag,
    Candidates,
    DropCause,
    Filter,
    FilterParameters,
    Mask,
    Natural,
    Request,
    tag_mask,
)
from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.framework.accelerators.fit import NO_ACCELERATOR, count_mismatches, fit_mask, rejection
from epp.framework.accelerators.requirements import (
    Memory,
    SelectionParameters,
    UnknownRule,
    read_memory,
    read_profiles,
    refuse_both,
    refuse_empty_range,
    unknown_passes,
)
from epp.framework.accelerators.selection import ANY, Selection
from epp.framework.accelerators.tag import AcceleratorKind
from epp.framework.arrays import all_true
from epp.framework.plugin_status import PluginMetric, Sample
from epp.framework.roles import FP
from epp.framework.snapshot import NODE_LABELS

_MISMATCHES = PluginMetric(
    "accelerator_mismatch",
    "Endpoints that a filter dropped for their accelerator, by the first bound that each violates; with `-unknown`, "
    "the bounded value is unknown.",
    ("reason",),
    is_counter=True,
)
_NODES = "nodeSelector"
_PREFERENCES = (
    "policy",
    "strategy",
    "min_compute_performance_tflops",
    "preferred_precisions",
    "preference_order",
    "class_stickiness_seconds",
)


class SelectionFilter(Filter[FP]):
    """Keeps an endpoint whose accelerator is within the bounds of this filter and those of the request."""

    drops = DropCause.CONSTRAINT
    reads = (ACCELERATOR,)
    may_read = (ACCELERATOR_SELECTION, NODE_LABELS)
    bounds: Selection = ANY
    unknown_passes: frozenset[str] = frozenset()
    """Bounds that an unknown value passes."""

    @property
    def accelerator_names(self) -> Sequence[str]:
        return (*self.bounds.classes, *sorted(self.bounds.excluded_classes), *self.bounds.models)

    metrics = (_MISMATCHES,)

    def setup(self) -> None:
        self.mismatches: Counter[str] = Counter()
        """Endpoints dropped, by reason."""

    @property
    def samples(self) -> Sequence[Sample]:
        return [Sample(_MISMATCHES, count, (reason,)) for reason, count in list(self.mismatches.items())]

    @property
    def without_prices(self) -> str:
        if not self.bounds.caps_cost:
            return ""
        passes = self.unknown_passes & {"maxCostPerHour", "maxCostPerMillionTokens"}
        return "endpoints of any price are kept" if passes else "all endpoints are dropped, by onUnknown"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        mask = self._within(self.bounds, candidates)
        asked = request.get(ACCELERATOR_SELECTION)
        return mask if asked is None else self._within(asked.of(candidates.profile), candidates, mask)

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Run once on synthetic data, without counting mismatches."""
        super().rehearse(request, candidates)
        self.mismatches.clear()

    def _within(self, bounds: Selection, candidates: Candidates, among: Mask | None = None) -> Mask:
        """Return the candidates of the mask that are within the bounds; count the others as mismatches."""
        if bounds.node_selector:
            labels = candidates.snapshot.records(NODE_LABELS)
            passes = _NODES in self.unknown_passes
            on_node = labels.derive_mask(_has_labels, bounds.node_selector, passes)[candidates.slots]
            if dropped := int((~on_node if among is None else among & ~on_node).sum()):
                self.mismatches[_NODES] += dropped
            among = on_node if among is None else among & on_node
        within = fit_mask(candidates, bounds, self.unknown_passes)
        if not all_true(within):
            kept = within if among is None else within | ~among
            count_mismatches(self.mismatches, candidates, kept, bounds, self.unknown_passes)
        return within if among is None else within & among

    def drop_reasons(self, request: Request, candidates: Candidates) -> Iterable[str]:
        asked = request.get(ACCELERATOR_SELECTION)
        wanted = self.bounds.node_selector
        wanted |= ANY.node_selector if asked is None else asked.of(candidates.profile).node_selector
        found = zip(candidates.records(ACCELERATOR), candidates.records(NODE_LABELS), strict=True)
        return [
            reason
            for tag, labels in found
            if (reason := self.rejection(request, tag, candidates.profile) or self._node_reason(labels, wanted))
        ]

    def _node_reason(self, labels: Mapping[str, str], wanted: frozenset[tuple[str, str]]) -> str:
        if _has_labels(labels, wanted, _NODES in self.unknown_passes):
            return ""
        key, value = min(pair for pair in wanted if labels.get(pair[0]) != pair[1])
        return f"its node has no label {key}={value}"

    def rejection(self, request: Request, tag: AcceleratorTag, profile: str = "") -> str | None:
        """Return the reason that an endpoint with this accelerator is dropped in a profile; None if it is kept."""
        reason = rejection(tag, self.bounds, self.unknown_passes)
        asked = request.get(ACCELERATOR_SELECTION)
        if reason is None and asked is not None:
            reason = rejection(tag, asked.of(profile), self.unknown_passes)
        return reason


def _has_labels(labels: Mapping[str, str], wanted: frozenset[tuple[str, str]], unknown_passes: bool) -> bool:  # noqa: FBT001  hashable arguments
    return all(labels.get(key) == value for key, value in wanted) or (unknown_passes and not labels)


class AcceleratorFilterParameters(SelectionParameters, frozen=True):
    """Bounds on accelerators, and the treatment of unknown values."""

    on_unknown: UnknownRule = "Fail"
    """Treatment of endpoints whose bounded value is unknown: `Fail` drops them, `Pass` keeps them. An object sets it by
    bound, such as `{minMemory: Pass}`; the other bounds then `Fail`."""
    cel: str = ""
    """CEL expression over `device`, as in Kubernetes' DRA, that must also be true. It may use `device.driver`,
    `device.attributes["gpu.nvidia.com"].productName` and `device.capacity["gpu.nvidia.com"].memory` with
    `.compareTo(quantity("40Gi"))`. If an endpoint lacks one of them, `onUnknown` applies (`{cel: Pass}`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _unknown_rules(self.on_unknown)
        if self.cel:
            DeviceExpression(self.cel, place="cel")


class AcceleratorFilter(SelectionFilter[AcceleratorFilterParameters]):
    """Keeps an endpoint if its accelerator is within all bounds.

    With `accelerator-selection-producer`, its bounds for the request and the running profile must hold too;
    `onUnknown` applies to them as well. With any bound, endpoints of kind CPU are dropped, unless the only bound is a
    list of `kinds` with `cpu` in it.
    """

    plugin_type = "accelerator-filter"

    def setup(self) -> None:
        super().setup()
        source = self.parameters.cel
        self.bounds = self.parameters.selection()
        self.unknown_passes, self._cel_passes = _unknown_rules(self.parameters.on_unknown)
        self._expression = DeviceExpression(source, place="cel") if source else None

    @property
    def warnings(self) -> Sequence[str]:
        given = [field for field in _PREFERENCES if getattr(self.parameters, field)]
        names = [info.encode_name for info in msgspec.structs.fields(self.parameters) if info.name in given]
        return [f"{name} has no effect on a filter: set it on accelerator-selection-producer" for name in names]

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        mask = super().filter(request, candidates)
        if self._expression is not None:
            selected = tag_mask(candidates, self._selects)
            if dropped := int((mask & ~selected).sum()):
                self.mismatches["cel"] += dropped
            mask &= selected
        return mask

    def rejection(self, request: Request, tag: AcceleratorTag, profile: str = "") -> str | None:
        reason = super().rejection(request, tag, profile)
        if reason is not None or self._expression is None or self._selects(tag):
            return reason
        return NO_ACCELERATOR if tag.kind is AcceleratorKind.CPU else "cel does not select it"

    def _selects(self, tag: AcceleratorTag) -> bool:
        if self._expression is None or tag.kind is AcceleratorKind.CPU:
            return self._expression is None
        holds = self._expression.holds(tag)
        return self._cel_passes if holds is None else holds


def _unknown_rules(on_unknown: UnknownRule) -> tuple[frozenset[str], bool]:
    """Return the bounds that an unknown value passes, and whether it passes the expression."""
    if isinstance(on_unknown, str):
        return unknown_passes(on_unknown), on_unknown == "Pass"
    others = {bound: word for bound, word in on_unknown.items() if bound != "cel"}
    return unknown_passes(others), on_unknown.get("cel") == "Pass"


class MigProfileFilterParameters(FilterParameters, frozen=True):
    """Bounds on MIG slices."""

    allow: tuple[str, ...] = ()
    """Keep only slices of these MIG profiles, in any spelling: `3g.20gb`, `1g.5gb+me`, `nvidia.com/mig-1g.5gb.me`.
    Whole devices are dropped."""
    deny: tuple[str, ...] = ()
    """Drop slices of these MIG profiles."""
    min_memory: Memory | None = None
    """Minimum memory of each slice or device: a quantity such as `20Gi`, or a number of GiB; 3 % less is enough."""
    min_compute_slices: Natural = 0
    """Minimum compute slices of each slice; a whole device has 7."""
    whole_device_only: bool = False
    """Drop slices, and devices that are shared in any other way."""
    on_unknown: Literal["Pass", "Fail"] = "Fail"
    """Treatment of endpoints whose slice is unknown: `Fail` drops them, `Pass` keeps them."""

    def __post_init__(self) -> None:
        bounds = self.bounds()
        refuse_empty_range(bounds)
        refuse_both("allow", bounds.mig_profiles, "deny", bounds.excluded_mig_profiles)
        if self.whole_device_only and self.allow:
            raise ValueError("allow keeps only slices and wholeDeviceOnly drops them: leave one of them out")

    def bounds(self) -> Selection:
        """Return the bounds as a selection of accelerators; raises ValueError."""
        return Selection(
            mig_profiles=read_profiles("allow", self.allow),
            excluded_mig_profiles=frozenset(read_profiles("deny", self.deny)),
            min_memory_bytes=read_memory("minMemory", self.min_memory) or 0,
            min_compute_slices=self.min_compute_slices,
            whole_device_only=self.whole_device_only,
        )


class MigProfileFilter(SelectionFilter[MigProfileFilterParameters]):
    """Keeps an endpoint if its MIG profile is allowed and not denied, and its slice is large enough.

    With `accelerator-selection-producer`, its bounds for the request must hold too. Endpoints without an accelerator
    are dropped.
    """

    plugin_type = "mig-profile-filter"

    def setup(self) -> None:
        super().setup()
        self.bounds = self.parameters.bounds()
        self.unknown_passes = unknown_passes(self.parameters.on_unknown)
