# SPDX-License-Identifier: Apache-2.0
"""Prefers accelerator classes in a given order, except those whose endpoints are all saturated."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    KV_USAGE,
    LOAD_INPUTS,
    RUNNING,
    WAITING,
    AcceleratorTag,
    Candidates,
    Category,
    Floats,
    Mask,
    Parameters,
    Positions,
    Request,
    Scorer,
    expected_load,
    tag_mask,
    tag_numbers,
)
from epp.framework.accelerators.tag import Routability, limit_for, names_of
from epp.framework.limits import Threshold

_UNLISTED = -1
_LIMITS = (
    (WAITING, "queue_depth_threshold"),
    (KV_USAGE, "kv_cache_util_threshold"),
    (RUNNING, "running_threshold"),
)


class ClassLimits(Parameters, frozen=True):
    """Saturation thresholds of one class; for those left out, the general ones apply."""

    queue_depth_threshold: Threshold | None = None
    """Waiting requests at which an endpoint is saturated."""
    kv_cache_util_threshold: Threshold | None = None
    """Share of the KV cache in use at which an endpoint is saturated, 0..1."""
    running_threshold: Threshold | None = None
    """Running requests at which an endpoint is saturated."""


class FirstAvailableParameters(Parameters, frozen=True):
    """Order of the classes, and saturation thresholds."""

    classes: tuple[str, ...] = ()
    """Names of AcceleratorClasses, or of models such as `h100`, first choice first; empty for all classes, in the order
    of the pool's endpoints."""
    queue_depth_threshold: Threshold = 5.0
    """Waiting requests at which an endpoint is saturated."""
    kv_cache_util_threshold: Threshold = 0.8
    """Share of the KV cache in use at which an endpoint is saturated, 0..1."""
    running_threshold: Threshold | None = None
    """Running requests at which an endpoint is saturated; without it, they do not count."""
    limits: Mapping[str, ClassLimits] = msgspec.field(default_factory=dict)
    """Thresholds of single classes by name; for endpoints of no class in this list, by model, such as `t4`."""

    def __post_init__(self) -> None:
        """Refuse names that are empty, or that differ in case only."""
        for what, names in (("classes", self.classes), ("limits", self.limits)):
            counts = Counter(name.lower() for name in names)
            if "" in counts:
                raise ValueError(f"{what} holds an empty name")
            twice = next((name for name, count in counts.items() if count > 1), None)
            if twice is not None:
                raise ValueError(f"{what} names {twice!r} twice; keep one")


class FirstAvailableScorer(Scorer[FirstAvailableParameters]):
    """`1 - i / n` for the endpoints of the i-th of n available classes, counted from 0.

    A class is available if at least one of its candidates is not draining, not blocked and below all saturation
    thresholds; values that an endpoint does not report are estimated from requests in flight. Endpoints that are
    draining, blocked, saturated or of no class in the order get 0. An endpoint of several classes counts for the first
    of them in the order.
    """

    plugin_type = "first-available-scorer"
    category = Category.BALANCE
    zero_means = "is draining, blocked, saturated, or of no class in the order"
    reads = (ACCELERATOR, WAITING, KV_USAGE)
    may_read = LOAD_INPUTS

    def setup(self) -> None:
        self._order = {name.lower(): place for place, name in enumerate(self.parameters.classes)}
        self._limits = {name.lower(): limits for name, limits in self.parameters.limits.items()}

    @property
    def accelerator_names(self) -> Sequence[str]:
        return (*self.parameters.classes, *self.parameters.limits)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        places = self._places(candidates)
        usable = (places != _UNLISTED) & tag_mask(candidates, _is_usable) & ~self._saturated(candidates)
        classes = np.unique(places[usable])
        scores = 1.0 - np.searchsorted(classes, places) / max(len(classes), 1)
        return np.where(usable, scores, 0.0)

    def _places(self, candidates: Candidates) -> Positions:
        """Return the place of each candidate's class in the order."""
        return candidates.snapshot.records(ACCELERATOR).derive(self._places_of)[candidates.slots]

    def _places_of(self, tags: tuple[AcceleratorTag, ...]) -> Positions:
        order = self._order or _order_of_appearance(tags)
        names = [names_of(tag) if self._order else names_of(tag)[:1] for tag in tags]
        places = [min((order[name] for name in of_tag if name in order), default=_UNLISTED) for of_tag in names]
        return np.array(places, dtype=np.intp)

    def _saturated(self, candidates: Candidates) -> Mask:
        """Return true for each candidate at or above a threshold."""
        saturated = np.zeros(len(candidates), dtype=np.bool_)
        for column, limit in _LIMITS:
            saturated |= expected_load(candidates, column) >= tag_numbers(candidates, self._limit, limit)
        return saturated

    def _limit(self, tag: AcceleratorTag, name: str) -> float | None:
        return limit_for(tag, name, self._limits, self.parameters)


def _is_usable(tag: AcceleratorTag) -> bool:
    return tag.state not in {Routability.DRAINING, Routability.BLOCKED}


def _order_of_appearance(tags: tuple[AcceleratorTag, ...]) -> dict[str, int]:
    order: dict[str, int] = {}
    for tag in tags:
        for name in names_of(tag)[:1]:
            order.setdefault(name, len(order))
    return order
