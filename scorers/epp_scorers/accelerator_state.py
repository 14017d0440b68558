# SPDX-License-Identifier: Apache-2.0
"""Prefer accelerators by the policy in the request's selection, healthy devices, and models that are not frozen."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from epp.framework import (
    ACCELERATOR,
    ACCELERATOR_SELECTION,
    ENDPOINT_RATES,
    LORA,
    PREFIX_MATCH,
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
from epp.framework.accelerators.arrays import WAKE_UP_INPUTS, WakeUpCost
from epp.framework.accelerators.selection import ANY, Selection
from epp.framework.accelerators.served_class import SERVED_CLASS, of_served_class
from epp.framework.accelerators.tag import PHASE, Device
from epp.framework.quantities import GIB
from epp.framework.rates import uncached_tokens
from epp.framework.request_conditions import parse_size
from epp_scorers.capability import BestFitParameters, BestFitScorer, MostCapableParameters, MostCapableScorer
from epp_scorers.cost import CheapestParameters, CheapestScorer
from epp_scorers.preference_order import (
    FirstAvailableParameters,
    FirstAvailableScorer,
    PreferenceOrderParameters,
    PreferenceOrderScorer,
)
from epp_scorers.strategies import STRATEGY_INPUTS, StrategyParameters, StrategyScorer

_REMEMBERED = 256
"""Scorers kept, one for each selection; clients may send any number of selections."""


class AcceleratorPolicyParameters(Parameters, frozen=True):
    """Policy for selections without one, weight of preferred classes, and facts about models for their conditions."""

    default_policy: Literal[
        "", "best-fit", "cheapest", "most-capable", "first-available", "cost", "performance", "balanced"
    ] = ""
    """Policy, or strategy, where the selection names none; empty for no preference."""
    preference_weight: Share = 0.75
    """Weight of preferred classes where the selection has both these and a policy, 0..1; the policy has the rest."""
    model_sizes: Mapping[str, str | int] = msgspec.field(default_factory=dict)
    """Number of parameters by model, such as `70B`, for conditions; takes precedence over the model's name."""

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be read."""
        for size in self.model_sizes.values():
            parse_size(size)


class AcceleratorPolicyScorer(Scorer[AcceleratorPolicyParameters]):
    """The score of the policy or strategy, and of the preferred classes, of the request's selection.

    The selection is that of `accelerator-selection-producer` for the request and profile. Its `policy` names one of
    `best-fit-scorer`, `cheapest-scorer`, `most-capable-scorer` and `first-available-scorer`; minimum memory, TFLOPS,
    precisions, spot preference and order of classes in the selection are the parameters. A `strategy` is that of
    `strategy-scorer`. Its `preferenceOrder` has the score of `preference-order-scorer`.

    With both, it is `preferenceWeight * preference + (1 - preferenceWeight) * policy`: the preference decides, and the
    policy decides between endpoints of one class, and where no preference applies. First-available uses the preferences
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
        self._scorers_for = lru_cache(_REMEMBERED)(self._made_for)

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

    def _made_for(self, selection: Selection) -> tuple[tuple[float, Scorer[Any]], ...]:
        """Return the scorers with their weights."""
        policy, order = selection.policy or self.parameters.default_policy, selection.preference_order
        if not order or policy == "first-available":
            return ((1.0, self._of_policy(policy, selection)),) if policy else ()
        given, weight = self.parameters, self.parameters.preference_weight if policy else 1.0
        preferences = PreferenceOrderParameters(preference_order=order, model_sizes=given.model_sizes)
        preferred = (weight, PreferenceOrderScorer(preferences, clock=self.clock))
        return (preferred, (1.0 - weight, self._of_policy(policy, selection))) if policy else (preferred,)

    def _of_policy(self, policy: str, selection: Selection) -> Scorer[Any]:
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


HEALTHY = 1.0
DOUBTFUL = 0.5
UNHEALTHY = 0.0
PENDING = 0.25


class DeviceHealthScorer(Scorer):
    """Health of the endpoint's worst device: 1 if healthy, 0.5 if doubtful, 0 if unhealthy.

    Doubtful: health Unknown, or tainted with NoSchedule. Unhealthy: health Unhealthy, or tainted with NoExecute. A
    device without reported health or taints is healthy. The score is divided by 4 while TensorFusion reports one of the
    GPUs as Pending.
    """

    plugin_type = "device-health-scorer"
    category = Category.AFFINITY
    zero_means = "has a device that is unhealthy"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return tag_numbers(candidates, _health)


def _health(tag: AcceleratorTag) -> float:
    worst = min(map(_device_health, tag.devices), default=HEALTHY)
    return worst * PENDING if "Pending" in str(tag.attributes.get(PHASE, "")).split(",") else worst


def _device_health(device: Device) -> float:
    health = device.health.lower()
    if health == "unhealthy" or "NoExecute" in device.taints:
        return UNHEALTHY
    return DOUBTFUL if health == "unknown" or "NoSchedule" in device.taints else HEALTHY


class WakeUpParameters(Parameters, frozen=True):
    """Reduction of the score of a frozen endpoint."""

    memory_penalty: Share = 0.25
    """Reduction for an endpoint frozen to memory, 0..1."""
    disk_penalty: Share = 1.0
    """Reduction for an endpoint frozen to disk, 0..1."""


class WakeUpScorer(Scorer[WakeUpParameters]):
    """1 for an awake endpoint; `1 - memoryPenalty` or `1 - diskPenalty` for a frozen one.

    An endpoint is frozen if its label or pod annotation `llm-d.ai/frozen` or `tensor-fusion.ai/frozen` is `memory` or
    `disk`. It counts as awake with requests in flight or running, because the first request wakes it up.
    """

    plugin_type = "wake-up-scorer"
    category = Category.AFFINITY
    zero_means = "is frozen"
    reads = (ACCELERATOR,)
    may_read = WAKE_UP_INPUTS[1:]

    def setup(self) -> None:
        self._cost = WakeUpCost(self.parameters.memory_penalty, self.parameters.disk_penalty)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        cost = self._cost.of(candidates)
        return np.ones(len(candidates)) if cost is None else 1.0 - cost
