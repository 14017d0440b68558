# SPDX-License-Identifier: Apache-2.0
"""Prefer accelerators by the policy in the request's selection, healthy devices, and models that are not frozen."""

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from epp.framework import (
    ACCELERATOR,
    ACCELERATOR_SELECTION,
    KV_USAGE,
    LOAD_INPUTS,
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
from epp.framework.accelerators.tag import PHASE, Device
from epp.framework.quantities import GIB
from epp_scorers.capability import BestFitParameters, BestFitScorer, MostCapableParameters, MostCapableScorer
from epp_scorers.cost import CheapestParameters, CheapestScorer
from epp_scorers.preference_order import FirstAvailableParameters, FirstAvailableScorer

_REMEMBERED = 256
"""Scorers kept, one for each selection; clients may send any number of selections."""


class AcceleratorPolicyParameters(Parameters, frozen=True):
    """Policy for selections without one."""

    default_policy: Literal["", "best-fit", "cheapest", "most-capable", "first-available"] = ""
    """Policy where the selection names none; empty for no preference."""


class AcceleratorPolicyScorer(Scorer[AcceleratorPolicyParameters]):
    """The score of `best-fit-scorer`, `cheapest-scorer`, `most-capable-scorer` or `first-available-scorer`.

    The `policy` of the selection that `accelerator-selection-producer` makes for the request and profile names the
    scorer; minimum memory, TFLOPS, precisions, spot preference and order of classes in the selection are its
    parameters. Without a policy, 0 for all, which is no preference.
    """

    plugin_type = "accelerator-policy-scorer"
    zero_means = "fits the policy worst, or no policy applies"
    reads = (ACCELERATOR_SELECTION, ACCELERATOR)
    may_read = (KV_USAGE, *LOAD_INPUTS)

    @property
    def without_prices(self) -> str:
        return CheapestScorer.without_prices if self.parameters.default_policy == "cheapest" else ""

    def setup(self) -> None:
        self._scorer_for = lru_cache(_REMEMBERED)(self._made_for)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        selections = request.get(ACCELERATOR_SELECTION)
        selection = ANY if selections is None else selections.of(candidates.profile)
        if not (selection.policy or self.parameters.default_policy):
            return np.zeros(len(candidates))
        return self._scorer_for(selection).score(request, candidates)

    def _made_for(self, selection: Selection) -> Scorer[Any]:
        precisions: tuple[Any, ...] = selection.preferred_precisions
        match selection.policy or self.parameters.default_policy:
            case "cheapest":
                return CheapestScorer(CheapestParameters(spot_preference=selection.spot_preference or "auto"))
            case "most-capable":
                return MostCapableScorer(MostCapableParameters(preferred_precisions=precisions or ("fp16",)))
            case "first-available":
                return FirstAvailableScorer(FirstAvailableParameters(classes=selection.preference_order))
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
