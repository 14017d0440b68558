# SPDX-License-Identifier: Apache-2.0
"""Prefer healthy devices, and endpoints whose model is not frozen."""

import numpy as np

from epp.framework import (
    ACCELERATOR,
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
from epp.framework.accelerators.tag import PHASE, Device

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
