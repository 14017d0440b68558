"""Keeps endpoints whose labels a Kubernetes LabelSelector matches."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from epp.framework import Candidates, Endpoint, Filter, FilterParameters, Mask, Parameters, Request
from epp.framework.limits import Name

_WITH_VALUES = ("In", "NotIn")


class LabelSelectorRequirement(Parameters, frozen=True):
    """One demand on one label, as Kubernetes writes it."""

    key: Name
    """The label's name."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In, NotIn, Exists or DoesNotExist. NotIn and DoesNotExist also match where the label is absent."""
    values: tuple[str, ...] = ()
    """For In and NotIn at least one; for the others none."""

    def __post_init__(self) -> None:
        """Refuse what Kubernetes refuses."""
        if self.operator in _WITH_VALUES and not self.values:
            raise ValueError(f"operator {self.operator} for label {self.key!r} has no values; list at least one")
        if self.operator not in _WITH_VALUES and self.values:
            raise ValueError(f"operator {self.operator} for label {self.key!r} takes no values; remove them")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether an endpoint with these labels meets the demand."""
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
    """A Kubernetes LabelSelector: everything in it must match; an empty one matches all endpoints."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels with the value each must have."""
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    """Demands on labels."""


class LabelSelectorFilter(Filter[LabelSelectorParameters]):
    """Keeps an endpoint if it has every label in `matchLabels` and meets every entry of `matchExpressions`."""

    plugin_type = "label-selector-filter"

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        return candidates.snapshot.endpoints.derive(self._select)[candidates.slots]

    def _select(self, endpoints: tuple[Endpoint | None, ...]) -> Mask:
        return np.array([e is not None and self._matches(e.labels) for e in endpoints], dtype=np.bool_)

    def _matches(self, labels: Mapping[str, str]) -> bool:
        wanted = self.parameters.match_labels
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            requirement.matches(labels) for requirement in self.parameters.match_expressions
        )
