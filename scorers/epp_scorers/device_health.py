# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with healthy devices that have no taints."""

from epp.framework import ACCELERATOR, AcceleratorTag, Candidates, Category, Floats, Request, Scorer, tag_numbers
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

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        return tag_numbers(candidates, _health)


def _health(tag: AcceleratorTag) -> float:
    worst = min(map(_device_health, tag.devices), default=HEALTHY)
    return worst * PENDING if "Pending" in str(tag.attributes.get(PHASE, "")).split(",") else worst


def _device_health(device: Device) -> float:
    health = device.health.lower()
    if health == "unhealthy" or "NoExecute" in device.taints:
        return UNHEALTHY
    return DOUBTFUL if health == "unknown" or "NoSchedule" in device.taints else HEALTHY
