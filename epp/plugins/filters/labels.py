# SPDX-License-Identifier: Apache-2.0
"""Filters by endpoint labels: a Kubernetes LabelSelector, and its deprecated forms."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal

import msgspec

from epp.framework import (
    Candidates,
    DropCause,
    Endpoint,
    Filter,
    FilterParameters,
    Mask,
    Name,
    Parameters,
    Request,
    Stability,
)


class LabelSelectorRequirement(Parameters, frozen=True):
    """A requirement on one label, as in Kubernetes."""

    key: Name
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """NotIn and DoesNotExist also match endpoints without the label."""
    values: tuple[str, ...] = ()
    """For In and NotIn, at least one; for the other operators, none."""

    def __post_init__(self) -> None:
        """Refuse what Kubernetes refuses."""
        takes_values = self.operator in {"In", "NotIn"}
        if takes_values and not self.values:
            raise ValueError(f"operator {self.operator} for label {self.key!r} has no values; list at least one")
        if self.values and not takes_values:
            raise ValueError(f"operator {self.operator} for label {self.key!r} takes no values; remove them")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an endpoint with these labels meets the requirement."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class LabelSelectorParameters(FilterParameters, frozen=True):
    """A Kubernetes LabelSelector: all of it must match; an empty one matches all endpoints."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels and the exact value required of each."""
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    """Requirements on labels."""


class LabelSelectorFilter(Filter[LabelSelectorParameters]):
    """Keeps an endpoint if it has every label in `matchLabels` and meets every entry of `matchExpressions`."""

    plugin_type = "label-selector-filter"
    drops = DropCause.CONSTRAINT

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        return candidates.snapshot.endpoints.derive_mask(self._selects)[candidates.slots]

    def _selects(self, endpoint: Endpoint | None) -> bool:
        return endpoint is not None and self._matches(endpoint.labels)

    def _matches(self, labels: Mapping[str, str]) -> bool:
        wanted = self.parameters.match_labels
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            requirement.matches(labels) for requirement in self.parameters.match_expressions
        )

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        return [labelled(endpoint, self._unmet(endpoint.labels)) for endpoint in dropped.endpoints]

    def _unmet(self, labels: Mapping[str, str]) -> str:
        """Return the label that does not match."""
        exact = (key for key, value in self.parameters.match_labels.items() if labels.get(key) != value)
        others = (each.key for each in self.parameters.match_expressions if not each.matches(labels))
        return next(chain(exact, others), "")


class ByLabelSelectorFilter(LabelSelectorFilter):
    """Keeps an endpoint if it has every label in `matchLabels` and meets every entry of `matchExpressions`.

    Deprecated: the former name of `label-selector-filter`.
    """

    plugin_type = "by-label-selector"
    stability = Stability.DEPRECATED


class ByLabelParameters(FilterParameters, frozen=True, kw_only=True):
    """A label and its allowed values."""

    label: Name
    """Name of the label."""
    valid_values: tuple[str, ...] = ()
    """Allowed values of the label. May be empty only with `allowsNoLabel`."""
    allows_no_label: bool = False
    """Also keep endpoints without the label."""

    def __post_init__(self) -> None:
        """Refuse a filter that would drop every endpoint."""
        if not self.valid_values and not self.allows_no_label:
            raise ValueError(
                f"no value of label {self.label!r} would be kept; list validValues, or set allowsNoLabel to true"
            )


class ByLabelFilter(Filter[ByLabelParameters]):
    """Keeps an endpoint if its label has one of the values, or, with `allowsNoLabel`, if it lacks the label.

    Deprecated: use `label-selector-filter`, which takes a Kubernetes LabelSelector.
    """

    plugin_type = "by-label"
    stability = Stability.DEPRECATED
    drops = DropCause.CONSTRAINT

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        wanted = self.parameters
        return has_value(candidates, wanted.label, wanted.valid_values, or_no_label=wanted.allows_no_label)

    def why_dropped(self, request: Request, dropped: Candidates) -> Sequence[str]:  # noqa: ARG002
        return [labelled(endpoint, self.parameters.label) for endpoint in dropped.endpoints]


def labelled(endpoint: Endpoint, key: str) -> str:
    """Return what an endpoint has as a label, as a reason for which it is dropped."""
    value = endpoint.labels.get(key)
    return f"has no label {key}" if value is None else f"its label {key} is {value!r}"


def has_value(candidates: Candidates, label: str, values: tuple[str, ...], *, or_no_label: bool) -> Mask:
    """Mark the candidates whose label has one of the values and, if asked for, those without the label."""
    mask = candidates.where_label(label, values)
    if not or_no_label:
        return mask
    return mask | candidates.snapshot.endpoints.derive_mask(_lacks_label, label)[candidates.slots]


def _lacks_label(endpoint: Endpoint | None, label: str) -> bool:
    return endpoint is not None and label not in endpoint.labels
