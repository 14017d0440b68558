# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by an ordered list of accelerators or labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from epp.framework import (
    ACCELERATOR,
    KV_USAGE,
    LOAD_INPUTS,
    LORA,
    PROMPT_TOKENS,
    RUNNING,
    WAITING,
    AcceleratorTag,
    Candidates,
    Category,
    DropCause,
    Filter,
    FilterParameters,
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
from epp.framework.arrays import everyone
from epp.framework.limits import Threshold, Tunable
from epp.framework.request_conditions import HIGHEST_PREFERENCE, Preference, compile_condition, facts_of, parse_size
from epp.framework.snapshot import adapters_in_use

TIE = 1e-6
"""Difference in score between preferences of equal `score`; too small to outweigh other scorers."""


class PreferenceOrderParameters(FilterParameters, frozen=True, kw_only=True):
    """The preferences, and facts about models."""

    preference_order: Annotated[tuple[Preference, ...], Meta(min_length=1)]
    """The preferences; a class may appear several times, with different conditions."""
    exclusive: bool = False
    """Also drop endpoints without a preference that applies to the request."""
    model_sizes: Mapping[str, str | int] = msgspec.field(default_factory=dict)
    """Number of parameters by model, such as `70B`; takes precedence over the model's name."""
    model_precisions: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Precision by model, such as `fp8`; takes precedence over the model's name."""

    def __post_init__(self) -> None:
        for size in self.model_sizes.values():
            parse_size(size)


class PreferenceOrderScorer(Filter[PreferenceOrderParameters], Scorer[PreferenceOrderParameters]):
    """Highest score of the preferences for the endpoint's class that apply to the request, divided by 100.

    A preference applies if all its conditions hold, with `match: any` if one of them holds, and always without
    conditions. Endpoints without an applicable preference get 0; with `exclusive` they are dropped. Among equal scores,
    the order of the list decides: each one after the first is 0.000001 lower, but not below 0. An endpoint of several
    classes gets the highest score among them. A class without endpoints has no effect.
    """

    plugin_type = "preference-order-scorer"
    drops = DropCause.CONSTRAINT
    drop_means = "has a class without a preference"
    category = Category.AFFINITY
    zero_means = "has a class without a preference"
    reads = (ACCELERATOR,)
    may_read = (PROMPT_TOKENS, LORA)

    def setup(self) -> None:
        parameters, preferences = self.parameters, self.parameters.preference_order
        self.may_empty = parameters.exclusive
        self._classes = tuple(preference.accelerator_class.lower() for preference in preferences)
        self._tests = [
            (any if preference.match == "any" else all, [compile_condition(one) for one in preference.conditions])
            for preference in preferences
        ]
        scores = [preference.score for preference in preferences]
        ties = np.array([scores[:place].count(score) for place, score in enumerate(scores)])
        self._scores = np.maximum(0.0, np.array(scores) / HIGHEST_PREFERENCE - TIE * ties)[:, None]
        self._sizes = {model: parse_size(size) for model, size in parameters.model_sizes.items()}
        self._precisions = {model: precision.lower() for model, precision in parameters.model_precisions.items()}

    @property
    def accelerator_names(self) -> Sequence[str]:
        return tuple(one.accelerator_class for one in self.parameters.preference_order)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        if not self.parameters.exclusive:
            return everyone(len(candidates))
        kept: Mask = np.any(self._applying(request, candidates), axis=0)
        return kept

    def score(self, request: Request, candidates: Candidates) -> Floats:
        best: Floats = np.where(self._applying(request, candidates), self._scores, 0.0).max(axis=0)
        return best

    def _applying(self, request: Request, candidates: Candidates) -> Mask:
        """Return one row for each preference: whether it applies to the request and names the candidate's class."""
        snapshot = candidates.snapshot
        adapters = snapshot.records(LORA).derive(adapters_in_use)
        facts = facts_of(request, self._sizes, self._precisions, adapters, self.clock.utc())
        holds = [not tests or combine(test(facts) for test in tests) for combine, tests in self._tests]
        members = snapshot.records(ACCELERATOR).derive(_members, self._classes)[:, candidates.slots]
        return members & np.array(holds, dtype=np.bool_)[:, None]


def _members(tags: tuple[AcceleratorTag, ...], classes: tuple[str, ...]) -> Mask:
    """Return one row for each class: whether each tag has it."""
    names = [frozenset(names_of(tag)) for tag in tags]
    return np.array([[name in of_tag for of_tag in names] for name in classes], dtype=np.bool_)


_UNLISTED = -1
_LIMITS = ((WAITING, "queue_depth_threshold"), (KV_USAGE, "kv_cache_util_threshold"), (RUNNING, "running_threshold"))


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
    """Names of AcceleratorClasses, or of models such as `h100`, first choice first; empty for all, in pool order."""
    queue_depth_threshold: Annotated[Threshold, Tunable(0.5, 64, log=True)] = 5.0
    """Waiting requests at which an endpoint is saturated."""
    kv_cache_util_threshold: Annotated[Threshold, Tunable(0.3, 1)] = 0.8
    """Share of the KV cache in use at which an endpoint is saturated, 0..1."""
    running_threshold: Threshold | None = None
    """Running requests at which an endpoint is saturated; without it, they do not count."""
    limits: Mapping[str, ClassLimits] = msgspec.field(default_factory=dict)
    """Thresholds of single classes by name; for endpoints of no class in this list, by model, such as `t4`."""

    def __post_init__(self) -> None:
        for what, names in (("classes", self.classes), ("limits", self.limits)):
            counts = Counter(name.lower() for name in names)
            if "" in counts:
                raise ValueError(f"{what} contains an empty name")
            repeated = next((name for name, count in counts.items() if count > 1), None)
            if repeated is not None:
                raise ValueError(f"{what} repeats {repeated!r}; remove one")


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

    def score(self, request: Request, candidates: Candidates) -> Floats:
        places = self._places(candidates)
        usable = (places != _UNLISTED) & tag_mask(candidates, _is_usable) & ~self._saturated(candidates)
        classes = np.unique(places[usable])
        scores = 1.0 - np.searchsorted(classes, places) / max(len(classes), 1)
        return np.where(usable, scores, 0.0)

    def _places(self, candidates: Candidates) -> Positions:
        """Return the place of each candidate's class in the order."""
        return candidates.snapshot.records(ACCELERATOR).derive(self._places_of)[candidates.slots]

    def _places_of(self, tags: tuple[AcceleratorTag, ...]) -> Positions:
        names, order = [names_of(tag) for tag in tags], self._order
        if not order:
            names = [of_tag[:1] for of_tag in names]
            order = {name: place for place, name in enumerate(dict.fromkeys(chain(*names)))}
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
