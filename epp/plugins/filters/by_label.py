"""Keeps endpoints by the value of one label."""

import numpy as np

from epp.framework import Candidates, Endpoint, Filter, FilterParameters, Mask, Request, Stability
from epp.framework.limits import Name


def has_value(candidates: Candidates, label: str, values: tuple[str, ...], *, or_no_label: bool) -> Mask:
    """Mark the candidates whose label has one of the values, and those without the label where asked for."""
    mask = candidates.where_label(label, values)
    if not or_no_label:
        return mask
    return mask | candidates.snapshot.endpoints.derive(_lack_label, label)[candidates.slots]


def _lack_label(endpoints: tuple[Endpoint | None, ...], label: str) -> Mask:
    return np.array([e is not None and label not in e.labels for e in endpoints], dtype=np.bool_)


class ByLabelParameters(FilterParameters, frozen=True, kw_only=True):
    """The label, and what it may say."""

    label: Name
    """The label's name."""
    valid_values: tuple[str, ...] = ()
    """Values that an endpoint's label may have. May be empty only with `allowsNoLabel`."""
    allows_no_label: bool = False
    """Keep endpoints without the label too."""

    def __post_init__(self) -> None:
        """Refuse what matches nobody."""
        if not self.valid_values and not self.allows_no_label:
            raise ValueError(
                f"no value of label {self.label!r} would be kept; list validValues, or set allowsNoLabel to true"
            )


class ByLabelFilter(Filter[ByLabelParameters]):
    """Keeps an endpoint if its label has one of the values, or, with `allowsNoLabel`, if it lacks the label.

    Deprecated: `label-selector-filter` says the same in Kubernetes' own words.
    """

    plugin_type = "by-label"
    stability = Stability.DEPRECATED

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        wanted = self.parameters
        return has_value(candidates, wanted.label, wanted.valid_values, or_no_label=wanted.allows_no_label)
