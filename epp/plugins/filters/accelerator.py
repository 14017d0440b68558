"""Keeps endpoints whose accelerator is what the configuration and the request ask for."""

from collections.abc import Sequence

import msgspec

from epp.framework import Candidates, Mask, Request
from epp.framework.accelerator_arrays import tag_mask
from epp.framework.accelerator_fit import NO_ACCELERATOR
from epp.framework.accelerator_requirements import SelectionParameters, UnknownRule, unknown_passes
from epp.framework.accelerators import AcceleratorKind, AcceleratorTag
from epp.framework.device_expressions import DeviceExpression
from epp.plugins.filters.selection_filter import SelectionFilter

_PREFERENCES = ("policy", "min_compute_performance_tflops", "preferred_precisions", "preference_order")


class AcceleratorFilterParameters(SelectionParameters, frozen=True):
    """The bounds, and what becomes of what is not known."""

    on_unknown: UnknownRule = "Fail"
    """What becomes of an endpoint of which a bounded number or name is not known: `Fail` drops it, `Pass` keeps it.
    As an object, by bound: `{minMemory: Pass}`, the others `Fail`."""
    cel: str = ""
    """CEL expression over `device`, as in Kubernetes' DRA, that must be true too: of `device.driver`,
    `device.attributes["gpu.nvidia.com"].productName`, `device.capacity["gpu.nvidia.com"].memory` with
    `.compareTo(quantity("40Gi"))`. Where an endpoint lacks what it names, `onUnknown` decides (`{cel: Pass}`)."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a bound."""
        super().__post_init__()
        _rule(self.on_unknown)
        if self.cel:
            DeviceExpression(self.cel, place="cel")


class AcceleratorFilter(SelectionFilter[AcceleratorFilterParameters]):
    """Keeps an endpoint if its accelerator is within all bounds.

    Where `accelerator-selection-producer` is configured, its bounds for the request and the running profile must hold
    too, and `onUnknown` goes for them as well. With any bound, endpoints of kind CPU are dropped, unless the only bound
    is a list of `kinds` with `cpu` in it.
    """

    plugin_type = "accelerator-filter"

    def setup(self) -> None:
        source = self.parameters.cel
        self.bounds = self.parameters.selection()
        self.unknown_passes, self._cel_passes = _rule(self.parameters.on_unknown)
        self._expression = DeviceExpression(source, place="cel") if source else None

    @property
    def warnings(self) -> Sequence[str]:
        given = [field for field in _PREFERENCES if getattr(self.parameters, field)]
        names = [info.encode_name for info in msgspec.structs.fields(self.parameters) if info.name in given]
        return [f"{name} has no effect on a filter: set it on accelerator-selection-producer" for name in names]

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        mask = super().filter(request, candidates)
        if self._expression is not None:
            mask &= tag_mask(candidates, self._selects)
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


def _rule(on_unknown: UnknownRule) -> tuple[frozenset[str], bool]:
    """Return the bounds that what is not known passes, and whether it passes the expression."""
    if isinstance(on_unknown, str):
        return unknown_passes(on_unknown), on_unknown == "Pass"
    others = {bound: word for bound, word in on_unknown.items() if bound != "cel"}
    return unknown_passes(others), on_unknown.get("cel") == "Pass"
