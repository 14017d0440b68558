"""Prefers endpoints whose neighbours on the same physical device have little to do."""

from dataclasses import dataclass

import numpy as np

from epp.framework import Candidates, Category, Floats, Parameters, Positions, Request, Scorer
from epp.framework.accelerators import AcceleratorTag, Sharing
from epp.framework.limits import Share
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, RUNNING, WAITING


class GpuNeighbourParameters(Parameters, frozen=True):
    """How much neighbours are felt, by how the device is divided; 0 for not at all, 1 for as much as can be."""

    mig_weight: Share = 0.25
    """Slices of their own, as of MIG or AMD partitions: power, host and PCIe are shared all the same."""
    mps_weight: Share = 0.75
    """Processes that compute at the same time."""
    time_slicing_weight: Share = 1.0
    """Processes that take turns; also virtual GPUs, and devices of which nobody says how they are shared."""

    def weight_of(self, sharing: Sharing) -> float:
        """Return the weight of neighbours on a device that is divided so."""
        match sharing:
            case Sharing.MIG | Sharing.AMD:
                return self.mig_weight
            case Sharing.MPS:
                return self.mps_weight
            case _:
                return self.time_slicing_weight


@dataclass(frozen=True, slots=True)
class _Sites:
    """Which slot has a part of which device: one entry for each such pair, and the weight of each slot."""

    slots: Positions
    devices: Positions
    weights: Floats


class GpuNeighbourScorer(Scorer[GpuNeighbourParameters]):
    """`1 - weight * load / max`, where `load` is what the other endpoints on the same physical device have to do.

    An endpoint has to do the requests that wait and run there, or those that this picker has in flight to it where it
    has not reported; `max` is the largest such load among the candidates, `weight` depends on how the device is
    divided. An endpoint on several devices feels the busiest one. 1 for endpoints without neighbours, or whose devices
    are not known.
    """

    plugin_type = "gpu-neighbour-scorer"
    category = Category.DISTRIBUTION
    reads = (ACCELERATOR,)
    may_read = (WAITING, RUNNING, IN_FLIGHT)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        snapshot = candidates.snapshot
        sites = snapshot.records(ACCELERATOR).derive(self._sites)
        engine = snapshot.column(WAITING) + snapshot.column(RUNNING)
        busy = np.where(np.isnan(engine), snapshot.column(IN_FLIGHT), engine)[sites.slots]
        neighbours = np.bincount(sites.devices, weights=busy)[sites.devices] - busy
        loads = np.zeros(snapshot.capacity)
        np.maximum.at(loads, sites.slots, neighbours)
        load = loads[candidates.slots]
        return 1.0 - sites.weights[candidates.slots] * load / (load.max(initial=0.0) or 1.0)

    def _sites(self, tags: tuple[AcceleratorTag, ...]) -> _Sites:
        numbers: dict[tuple[str, str], int] = {}
        pairs = [
            (slot, numbers.setdefault((tag.cluster, device), len(numbers)))
            for slot, tag in enumerate(tags)
            for device in sorted(_physical_devices(tag))
        ]
        slots, devices = np.array(pairs, dtype=np.intp).reshape(len(pairs), 2).T
        weights = [self.parameters.weight_of(tag.partition.kind) for tag in tags]
        return _Sites(slots, devices, np.array(weights, dtype=np.float64))


def _physical_devices(tag: AcceleratorTag) -> set[str]:
    """Return the ids of the devices behind the endpoint: of those divided, where it has slices."""
    parents = {device.parent_id for device in tag.devices if device.parent_id}
    if parents:
        return parents
    if tag.partition.parent_id:
        return {tag.partition.parent_id}
    return {device.id for device in tag.devices if device.id}
