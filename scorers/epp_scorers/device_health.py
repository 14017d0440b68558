"""Prefers endpoints whose devices are healthy and free of taints."""

from epp.framework import Candidates, Category, Floats, Request, Scorer
from epp.framework.accelerator_arrays import tag_numbers
from epp.framework.accelerator_attributes import PHASE
from epp.framework.accelerators import AcceleratorTag, Device
from epp.framework.snapshot import ACCELERATOR

HEALTHY = 1.0
DOUBTFUL = 0.5
UNHEALTHY = 0.0
PENDING = 0.25


class DeviceHealthScorer(Scorer):
    """The health of an endpoint's worst device: 1 for a healthy one, 0.5 for a doubtful one, 0 for an unhealthy one.

    Doubtful is a device of Unknown health, or tainted with NoSchedule; unhealthy an Unhealthy one, or one tainted with
    NoExecute. A device of which nobody says anything counts as healthy. All of it is divided by 4 while TensorFusion
    has got one of the GPUs Pending.
    """

    plugin_type = "device-health-scorer"
    category = Category.AFFINITY
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
