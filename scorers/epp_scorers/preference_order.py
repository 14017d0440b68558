# SPDX-License-Identifier: Apache-2.0
"""Prefers accelerator classes by a list of preferences with optional conditions on the request."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from epp.framework import (
    ACCELERATOR,
    LORA,
    PROMPT_TOKENS,
    AcceleratorTag,
    Candidates,
    Category,
    DropCause,
    Filter,
    FilterParameters,
    Floats,
    LoraState,
    Mask,
    Name,
    Parameters,
    Request,
    Scorer,
)
from epp.framework.accelerators.tag import names_of
from epp.framework.request_conditions import Condition, compile_condition, facts_of, parse_size

TIE = 1e-6
"""Difference in score between preferences of equal `score`; too small to outweigh other scorers."""

_HIGHEST = 100.0


class Preference(Parameters, frozen=True):
    """Preference for one class, and the requests to which it applies."""

    accelerator_class: Name = msgspec.field(name="class")
    """Name of an AcceleratorClass; for endpoints without a class, of a model such as `h100`."""
    score: Annotated[float, Meta(ge=0, le=_HIGHEST)] = _HIGHEST
    """Score of the class, out of 100."""
    conditions: tuple[Condition, ...] = ()
    """Conditions on the request; without any, the preference always applies."""
    match: Literal["all", "any"] = "all"
    """Whether all conditions must hold, or any one of them."""


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
        """Refuse sizes that cannot be read."""
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
    drop_means = "has a class that no preference is for"
    category = Category.AFFINITY
    zero_means = "has a class that no preference is for"
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
        self._scores = np.maximum(0.0, np.array(scores) / _HIGHEST - TIE * ties)[:, None]
        self._sizes = {model: parse_size(size) for model, size in parameters.model_sizes.items()}
        self._precisions = {model: precision.lower() for model, precision in parameters.model_precisions.items()}

    @property
    def accelerator_names(self) -> Sequence[str]:
        return tuple(one.accelerator_class for one in self.parameters.preference_order)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        if not self.parameters.exclusive:
            return np.ones(len(candidates), dtype=np.bool_)
        kept: Mask = np.any(self._applying(request, candidates), axis=0)
        return kept

    def score(self, request: Request, candidates: Candidates) -> Floats:
        best: Floats = np.where(self._applying(request, candidates), self._scores, 0.0).max(axis=0)
        return best

    def _applying(self, request: Request, candidates: Candidates) -> Mask:
        """Return one row for each preference: whether it applies to the request and names the candidate's class."""
        facts = facts_of(
            request,
            self._sizes,
            self._precisions,
            candidates.snapshot.records(LORA).derive(_adapters),
            self.clock.utc(),
        )
        holds = [not tests or combine(test(facts) for test in tests) for combine, tests in self._tests]
        return self._members(candidates) & np.array(holds, dtype=np.bool_)[:, None]

    def _members(self, candidates: Candidates) -> Mask:
        """Return one row for each preference: whether it names the candidate's class."""
        return candidates.snapshot.records(ACCELERATOR).derive(_members, self._classes)[:, candidates.slots]


def _members(tags: tuple[AcceleratorTag, ...], classes: tuple[str, ...]) -> Mask:
    names = [frozenset(names_of(tag)) for tag in tags]
    return np.array([[name in of_tag for of_tag in names] for name in classes], dtype=np.bool_)


def _adapters(states: tuple[LoraState, ...]) -> frozenset[str]:
    """Return the adapters known to any endpoint."""
    return frozenset().union(*(state.running | state.waiting for state in states))
