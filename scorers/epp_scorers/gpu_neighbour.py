# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints whose neighbours on the same physical device have little load."""

import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    RUNNING,
    WAITING,
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
from epp.framework.accelerators.places import device_use
from epp.framework.accelerators.tag import Sharing


class GpuNeighbourParameters(Parameters, frozen=True):
    """Effect of neighbours, by the way the device is shared: 0 for none, 1 for the strongest."""

    mig_weight: Share = 0.25
    """For hardware partitions, such as MIG slices and AMD partitions, and cores: they share power, host and PCIe."""
    mps_weight: Share = 0.75
    """For processes that compute at the same time."""
    time_slicing_weight: Share = 1.0
    """For processes that take turns, virtual GPUs, and devices shared in an unknown way."""

    def weight_of(self, sharing: Sharing) -> float:
        """Return the weight for a device that is shared in this way."""
        match sharing:
            case Sharing.MIG | Sharing.AMD | Sharing.CORES:
                return self.mig_weight
            case Sharing.MPS:
                return self.mps_weight
            case _:
                return self.time_slicing_weight


class GpuNeighbourScorer(Scorer[GpuNeighbourParameters]):
    """`1 - weight * load / max`, where `load` is that of the other endpoints on the same physical device.

    The load of an endpoint is its waiting and running requests, or, if it has not reported, the requests in flight from
    this picker. `max` is the largest `load` among the candidates; `weight` depends on the way the device is shared. For
    an endpoint on several devices, the busiest one counts. 1 for endpoints without neighbours, or with unknown devices.
    """

    plugin_type = "gpu-neighbour-scorer"
    category = Category.DISTRIBUTION
    zero_means = "shares a device with the busiest neighbours"
    reads = (ACCELERATOR,)
    may_read = (WAITING, RUNNING, IN_FLIGHT)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        snapshot = candidates.snapshot
        use = device_use(snapshot)
        engine = snapshot.column(WAITING) + snapshot.column(RUNNING)
        busy = np.where(np.isnan(engine), snapshot.column(IN_FLIGHT), engine)[use.slots]
        neighbours = np.bincount(use.devices, weights=busy)[use.devices] - busy
        loads = np.zeros(snapshot.capacity)
        np.maximum.at(loads, use.slots, neighbours)
        load = loads[candidates.slots]
        return 1.0 - tag_numbers(candidates, self._weight) * load / (load.max(initial=0.0) or 1.0)

    def _weight(self, tag: AcceleratorTag) -> float:
        return self.parameters.weight_of(tag.partition.kind)
