# SPDX-License-Identifier: Apache-2.0
"""Prefer accelerators by the policy or strategy of a selection."""

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    ACCELERATOR_SELECTION,
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    LORA,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    AcceleratorTag,
    Candidates,
    Category,
    Floats,
    Parameters,
    Request,
    Scorer,
    Share,
    tag_numbers,
)
from epp.framework.accelerators.arrays import USAGE_INPUTS, GpuUsageParameters, estimated_share
from epp.framework.accelerators.selection import ANY, SERVED_CLASS, Selection, of_served_class
from epp.framework.expected_times import TARGET_IN_REACH, batch_sizes, uncached_tokens
from epp.framework.limits import Weight, require_weights
from epp.framework.plugin import Datum
from epp.framework.quantities import GIB
from epp.framework.request_conditions import parse_size
from epp.framework.scoring import lowest_over
from epp_scorers.capability import BestFitParameters, BestFitScorer, MostCapableParameters, MostCapableScorer
from epp_scorers.cost import CheapestParameters, CheapestScorer, CostPerRequestParameters, CostPerRequestScorer
from epp_scorers.preference_order import (
    FirstAvailableParameters,
    FirstAvailableScorer,
    PreferenceOrderParameters,
    PreferenceOrderScorer,
)

Strategy: TypeAlias = Literal["cost", "performance", "balanced"]
_LEAST_SECONDS = 1e-3


class _Weights(NamedTuple):
    dollars: float
    first_token: float
    pace: float
    idle: float


_WEIGHTS: Mapping[Strategy, _Weights] = {
    "cost": _Weights(0.7, 0.1, 0.1, 0.1),
    "performance": _Weights(0.0, 0.45, 0.45, 0.1),
    "balanced": _Weights(0.35, 0.25, 0.25, 0.15),
}
STRATEGY_INPUTS: tuple[Datum, ...] = (
    ENDPOINT_RATES,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    TARGET_IN_REACH,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    *USAGE_INPUTS,
)
"""Inputs of a strategy, besides the accelerators."""


class StrategyParameters(Parameters, frozen=True):
    """Strategy, or custom weights."""

    strategy: Strategy = "balanced"
    """Weights of dollars, first token, pace and idle share: `cost` 0.7, 0.1, 0.1, 0.1; `performance` 0, 0.45, 0.45,
    0.1; `balanced` 0.35, 0.25, 0.25, 0.15."""
    dollars_weight: Weight | None = None
    """Weight of the dollars for the request, in place of the strategy's."""
    first_token_weight: Weight | None = None
    """Weight of the expected time to the first token, in place of the strategy's."""
    pace_weight: Weight | None = None
    """Weight of the expected time between two tokens, in place of the strategy's."""
    idle_weight: Weight | None = None
    """Weight of the share of the GPUs that is not in use, in place of the strategy's."""

    def __post_init__(self) -> None:
        names = ("dollarsWeight", "firstTokenWeight", "paceWeight", "idleWeight")
        require_weights(dict(zip(names, self.weights(), strict=True)))

    def weights(self) -> _Weights:
        own = (self.dollars_weight, self.first_token_weight, self.pace_weight, self.idle_weight)
        pairs = zip(own, _WEIGHTS[self.strategy], strict=True)
        return _Weights(*(by_strategy if one is None else one for one, by_strategy in pairs))


class StrategyScorer(Scorer[StrategyParameters]):
    """Weighted mean of four terms, each the lowest value among the candidates over that of the endpoint.

    - `dollars` for the request: price of the endpoint times the endpoint time that the request takes, as in
      `cost-per-request-scorer`;
    - `firstToken`: expected time to the first token, by the rates of `endpoint-rates-producer` and the queue;
    - `pace`: expected time between two tokens in the batch with this request;
    - `idle`: the share of the GPUs that is not in use (memory 0.7, compute 0.3), as in `gpu-packing-scorer`.

    Unknown prices are the median of the known ones. Without rates, TFLOPS replace the first token and the memory
    bandwidth the pace. A term that is the same for all candidates, or unknown for all, has no effect.
    """

    plugin_type = "strategy-scorer"
    category = Category.BALANCE
    zero_means = "costs far more, or takes far longer, than the best one"
    reads = (ACCELERATOR,)
    may_read = STRATEGY_INPUTS

    @property
    def without_prices(self) -> str:
        return "dollars have no effect" if self.parameters.weights().dollars else ""

    def setup(self) -> None:
        self._weights = self.parameters.weights()
        self._dollars = CostPerRequestScorer(CostPerRequestParameters(applies_to="all"))
        self._usage = GpuUsageParameters()

    def score(self, request: Request, candidates: Candidates) -> Floats:
        weights, scores = self._weights, np.zeros(len(candidates))
        if weights.dollars:
            scores += weights.dollars * self._dollars.score(request, candidates)
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            first_token, pace = (_share_of_most(candidates, name) for name in ("tflops", "bandwidth"))
        else:
            uncached = uncached_tokens(request, candidates, request.get(PREFIX_MATCH))
            first_token = lowest_over(np.maximum(rates.ttft_seconds(candidates, uncached), _LEAST_SECONDS))
            pace = lowest_over(rates.itl_seconds(candidates, batch_sizes(candidates) + 1.0))
        scores += weights.first_token * first_token + weights.pace * pace
        if weights.idle:
            used, _ = estimated_share(candidates, self._usage)
            scores += weights.idle * (1.0 - used)
        return np.clip(scores / sum(weights), 0.0, 1.0)


def _share_of_most(candidates: Candidates, name: str) -> Floats:
    """Return a figure of the endpoint over the largest one; 1 for all if it is unknown for all."""
    numbers = tag_numbers(candidates, _figure, name)
    largest = numbers.max(initial=0.0)
    return numbers / largest if largest else np.ones(len(numbers))


def _figure(tag: AcceleratorTag, name: str) -> float:
    if name == "tflops":
        return tag.device_tflops("fp16") * max(tag.count, 1)
    bandwidth = (tag.bandwidth_gbps or 0.0) * tag.partition.memory_fraction * max(tag.count, 1)
    return bandwidth if isfinite(bandwidth) and bandwidth > 0 else 0.0


_REMEMBERED = 256
"""Scorers kept, one for each selection; clients may send any number of selections."""


class AcceleratorPolicyParameters(Parameters, frozen=True):
    """Policy for selections without one, weight of preferred classes, and facts about models for their conditions."""

    default_policy: Literal[
        "", "best-fit", "cheapest", "most-capable", "first-available", "cost", "performance", "balanced"
    ] = ""
    """Policy, or strategy, if the selection names none; empty for no preference."""
    preference_weight: Share = 0.75
    """Weight of preferred classes, 0..1, if the selection has both these and a policy; the policy has the rest."""
    model_sizes: Mapping[str, str | int] = msgspec.field(default_factory=dict)
    """Number of parameters by model, such as `70B`, for conditions; takes precedence over the model's name."""

    def __post_init__(self) -> None:
        for size in self.model_sizes.values():
            parse_size(size)


class AcceleratorPolicyScorer(Scorer[AcceleratorPolicyParameters]):
    """The score of the policy or strategy, and of the preferred classes, of the request's selection.

    The selection is that of `accelerator-selection-producer` for the request and profile. Its `policy` names one of
    `best-fit-scorer`, `cheapest-scorer`, `most-capable-scorer` and `first-available-scorer`; minimum memory, TFLOPS,
    precisions, spot preference and order of classes in the selection are the parameters. A `strategy` is that of
    `strategy-scorer`. Its `preferenceOrder` has the score of `preference-order-scorer`.

    With both, it is `preferenceWeight * preference + (1 - preferenceWeight) * policy`: the preference comes first, and
    the policy decides among endpoints of one class, or if no preference applies. First-available uses the preferences
    as its order. With neither, 0 for all, which is no preference.

    With `classStickinessSeconds` in the selection, endpoints of the class that served the session before get
    `(1 + score) / 2` and all others `score / 2`, unless the expected first token of that class, by the rates of
    `endpoint-rates-producer`, comes later than the earliest one by more than that.
    """

    plugin_type = "accelerator-policy-scorer"
    zero_means = "fits the policy worst, or no policy applies"
    reads = (ACCELERATOR_SELECTION, ACCELERATOR)
    may_read = (LORA, SERVED_CLASS, *STRATEGY_INPUTS)

    @property
    def without_prices(self) -> str:
        match self.parameters.default_policy:
            case "cheapest":
                return CheapestScorer.without_prices
            case "cost" | "balanced" as strategy:
                return StrategyScorer(StrategyParameters(strategy)).without_prices
            case _:
                return ""

    def setup(self) -> None:
        self._scorers_for = lru_cache(_REMEMBERED)(self._create_scorers)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        selections = request.get(ACCELERATOR_SELECTION)
        selection = ANY if selections is None else selections.of(candidates.profile)
        found = np.zeros(len(candidates))
        for weight, scorer in self._scorers_for(selection):
            found += weight * scorer.score(request, candidates)
        stickiness = selection.class_stickiness_seconds
        return self._with_stickiness(found, stickiness, request, candidates) if stickiness else found

    def _with_stickiness(self, scores: Floats, seconds: float, request: Request, candidates: Candidates) -> Floats:
        """Put the class that served the session first, unless its first token comes later by more than `seconds`."""
        same, rates = of_served_class(request, candidates), request.get(ENDPOINT_RATES)
        if same is None:
            return scores
        if rates is not None:
            uncached = uncached_tokens(request, candidates, request.get(PREFIX_MATCH))
            expected = rates.ttft_seconds(candidates, uncached)
            if expected[same].min() - expected.min() > seconds:
                return scores
        return (scores + same) / 2

    def _create_scorers(self, selection: Selection) -> tuple[tuple[float, Scorer[Any]], ...]:
        policy, order = selection.policy or self.parameters.default_policy, selection.preference_order
        if not order or policy == "first-available":
            return ((1.0, self._policy_scorer(policy, selection)),) if policy else ()
        given, weight = self.parameters, self.parameters.preference_weight if policy else 1.0
        preferences = PreferenceOrderParameters(preference_order=order, model_sizes=given.model_sizes)
        preferred = (weight, PreferenceOrderScorer(preferences, clock=self.clock))
        return (preferred, (1.0 - weight, self._policy_scorer(policy, selection))) if policy else (preferred,)

    def _policy_scorer(self, policy: str, selection: Selection) -> Scorer[Any]:
        precisions: tuple[Any, ...] = selection.preferred_precisions
        match policy:
            case "cost" | "performance" | "balanced" as strategy:
                return StrategyScorer(StrategyParameters(strategy))
            case "cheapest":
                return CheapestScorer(CheapestParameters(spot_preference=selection.spot_preference or "auto"))
            case "most-capable":
                return MostCapableScorer(MostCapableParameters(preferred_precisions=precisions or ("fp16",)))
            case "first-available":
                names = (each.accelerator_class for each in selection.preference_order)
                return FirstAvailableScorer(FirstAvailableParameters(classes=tuple(dict.fromkeys(names))))
            case _:
                return BestFitScorer(
                    BestFitParameters(
                        min_memory=selection.min_memory_bytes / GIB or None,
                        min_compute_tflops=selection.min_tflops or None,
                        preferred_precisions=precisions,
                    )
                )
