# SPDX-License-Identifier: Apache-2.0
"""Prefer accelerators by memory, speed and health of their devices, and endpoints whose model is not frozen."""

from math import isfinite, nan
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from epp.framework import (
    ACCELERATOR,
    AcceleratorTag,
    Candidates,
    Category,
    Count,
    Floats,
    NonNegative,
    Parameters,
    Request,
    Scorer,
    Share,
    tag_numbers,
)
from epp.framework.accelerators.arrays import WAKE_UP_INPUTS, WakeUpCost
from epp.framework.accelerators.requirements import Memory, read_memory
from epp.framework.accelerators.tag import (
    PHASE,
    PRECISIONS,
    SLOTS_FREE,
    SLOTS_TOTAL,
    AcceleratorKind,
    Device,
    Precision,
)
from epp.framework.limits import Weight, require_weights
from epp.framework.quantities import memory_suffices

_STEP = 0.5
"""Factor for each place down the list of preferred precisions."""


class BestFitParameters(Parameters, frozen=True):
    """Requirements on one device, and weights of memory and compute."""

    min_memory: Memory | None = None
    """Memory required of one device or slice: a quantity such as `40Gi`, or a number of GiB."""
    min_compute_tflops: NonNegative | None = msgspec.field(default=None, name="minComputeTFLOPS")
    """TFLOPS (TOPS for integers) at which a device is fast enough; without it, any known figure is."""
    preferred_precisions: tuple[Precision, ...] = ()
    """Precisions to compute in, best first: the first known figure counts, halved for each place down the list."""
    memory_weight: Weight = 0.7
    """Weight of the memory term `M`."""
    compute_weight: Weight = 0.3
    """Weight of the compute term `C`."""

    def __post_init__(self) -> None:
        require_weights({"memoryWeight": self.memory_weight, "computeWeight": self.compute_weight})
        read_memory("minMemory", self.min_memory)


class BestFitScorer(Scorer[BestFitParameters]):
    """`0.7 * M + 0.3 * C`, divided by the sum of the weights.

    `M` is `minMemory / memory` of one device or slice: 1 without `minMemory`, 0 if the memory is unknown. `C` is
    `min(1, tflops / minComputeTFLOPS)` of one device or slice, or 1 for any known figure without `minComputeTFLOPS`,
    times 0.5 for each place of the precision down the list `preferredPrecisions`. fp16 is tried after the last of them;
    fp8 falls back to the INT8 figure. Without `preferredPrecisions` the largest figure counts; without any, `C` is 0.

    0 for an endpoint with less than `minMemory`, one on CPUs, and one with neither memory nor figures known. Memory 3 %
    below `minMemory` is accepted, because devices report less than their nominal size.
    """

    plugin_type = "best-fit-scorer"
    category = Category.AFFINITY
    zero_means = "has too little memory, no accelerator, or an unknown one"
    reads = (ACCELERATOR,)

    def setup(self) -> None:
        self._need_bytes = read_memory("minMemory", self.parameters.min_memory)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return np.clip(tag_numbers(candidates, self._score), 0.0, 1.0)

    def _score(self, tag: AcceleratorTag) -> float:
        compute, need, have = self._compute(tag), self._need_bytes, tag.memory_bytes
        if tag.kind is AcceleratorKind.CPU or (have is None and not compute):
            return 0.0
        if need is None:
            memory = 1.0
        elif have is None:
            memory = 0.0
        elif memory_suffices(have, need):
            memory = min(1.0, need / have)
        else:
            return 0.0
        by_memory, by_compute = self.parameters.memory_weight, self.parameters.compute_weight
        return (by_memory * memory + by_compute * compute) / (by_memory + by_compute)

    def _compute(self, tag: AcceleratorTag) -> float:
        preferred = self.parameters.preferred_precisions
        if not preferred:
            return self._sufficiency(max(tag.device_tflops(precision) for precision in PRECISIONS))
        for place, precision in enumerate((*preferred, "fp16")):
            tflops = tag.device_tflops(precision)
            if tflops:
                return float(self._sufficiency(tflops) * _STEP**place)
        return 0.0

    def _sufficiency(self, tflops: float) -> float:
        required = self.parameters.min_compute_tflops
        if not tflops or not required:
            return float(tflops > 0)
        return min(1.0, tflops / required)


class MostCapableParameters(Parameters, frozen=True):
    """Figures to compare, and their weights."""

    preferred_precisions: Annotated[tuple[Precision, ...], Meta(min_length=1)] = ("fp16",)
    """Precisions to compare TFLOPS in; for each endpoint the first one with a known figure counts."""
    basis: Literal["endpoint", "device"] = "endpoint"
    """Compare all devices of an endpoint together, or one device of each."""
    memory_weight: Weight = 0.5
    """Weight of the memory."""
    bandwidth_weight: Weight = 0.3
    """Weight of the memory bandwidth."""
    compute_weight: Weight = 0.2
    """Weight of the TFLOPS."""

    def __post_init__(self) -> None:
        require_weights(
            {
                "memoryWeight": self.memory_weight,
                "bandwidthWeight": self.bandwidth_weight,
                "computeWeight": self.compute_weight,
            }
        )


class MostCapableScorer(Scorer[MostCapableParameters]):
    """`0.5 * memory / max + 0.3 * bandwidth / max + 0.2 * tflops / max`, divided by the sum of the weights.

    Each maximum is over the candidates. A slice counts with its share of the device. Unknown figures, and all figures
    of endpoints on CPUs, count as 0.
    """

    plugin_type = "most-capable-scorer"
    category = Category.AFFINITY
    zero_means = "has no accelerator, or an unknown one"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        parameters = self.parameters
        weights = np.array([parameters.memory_weight, parameters.bandwidth_weight, parameters.compute_weight])
        names = ("memory", "bandwidth", "tflops")
        terms = np.array([_share(tag_numbers(candidates, self._number, name)) for name in names])
        scores: Floats = np.clip(weights @ terms / weights.sum(), 0.0, 1.0)
        return scores

    def _number(self, tag: AcceleratorTag, name: str) -> float:
        if tag.kind is AcceleratorKind.CPU:
            return 0.0
        count = max(tag.count, 1) if self.parameters.basis == "endpoint" else 1
        match name:
            case "memory":
                number = float(tag.memory_bytes or 0) * count
            case "bandwidth":
                number = (tag.bandwidth_gbps or 0.0) * tag.partition.memory_fraction * count
            case _:
                number = next(filter(None, map(tag.device_tflops, self.parameters.preferred_precisions)), 0.0) * count
        return number if isfinite(number) and number > 0 else 0.0


def _share(numbers: Floats) -> Floats:
    largest = numbers.max(initial=0.0)
    return numbers / largest if largest else numbers


_SLOTS = 8
"""Slots of a whole device."""


class SliceFitParameters(Parameters, frozen=True):
    """Requirements on one slice or device."""

    min_memory: Memory | None = None
    """Memory: a quantity such as `20Gi`, or a number of GiB."""
    min_compute_slices: Count | None = None
    """Compute slices; most devices have 7, a whole device counts as 8."""

    def __post_init__(self) -> None:
        read_memory("minMemory", self.min_memory)


class SliceFitScorer(Scorer[SliceFitParameters]):
    """`need / have` if the slice is large enough, else 0.

    This is `minMemory / memory` if set, else `minComputeSlices / computeSlices`, else 1 over the slice's memory slots.
    A whole device counts as 8 of each, so it fits worst. Memory 3 % below `minMemory` is accepted, because devices
    report less than their nominal size. Endpoints on CPUs and those of unknown size get 0.
    """

    plugin_type = "slice-fit-scorer"
    category = Category.AFFINITY
    zero_means = "has too small a slice, or one of unknown size"
    reads = (ACCELERATOR,)

    def setup(self) -> None:
        self._need_bytes = read_memory("minMemory", self.parameters.min_memory)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return tag_numbers(candidates, self._fit)

    def _fit(self, tag: AcceleratorTag) -> float:
        need = self.parameters.min_compute_slices
        compute = tag.partition.compute_slices or _SLOTS * tag.partition.compute_fraction
        if not _has_size(tag) or (need is not None and compute < need):
            return 0.0
        if self._need_bytes is not None:
            have = tag.memory_bytes or 0
            return min(1.0, self._need_bytes / have) if memory_suffices(have, self._need_bytes) else 0.0
        if need is not None:
            return need / compute
        slots = tag.partition.memory_slots or _SLOTS * tag.partition.memory_fraction
        return min(1.0, 1.0 / slots) if isfinite(slots) and slots > 0 else 0.0


def _has_size(tag: AcceleratorTag) -> bool:
    """Return whether the endpoint has a device, or probably has one."""
    return tag.has_accelerator or (tag.kind is AcceleratorKind.UNKNOWN and bool(tag.memory_bytes or tag.count))


class SliceHeadroomParameters(Parameters, frozen=True):
    """Direction of the preference."""

    mode: Literal["spread", "pack"] = "spread"
    """`spread` prefers nodes with many free slots, `pack` nodes with few."""


class SliceHeadroomScorer(Scorer[SliceHeadroomParameters]):
    """`freeSlots / totalSlots` of the endpoint's node with `spread`, 1 minus that with `pack`; 0.5 if unknown."""

    plugin_type = "slice-headroom-scorer"
    zero_means = "has a full node with spread, or an empty node with pack"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        free = tag_numbers(candidates, _free_share)
        scores = free if self.parameters.mode == "spread" else 1.0 - free
        return np.where(np.isnan(scores), 0.5, scores)


def _free_share(tag: AcceleratorTag) -> float:
    free, total = tag.attributes.get(SLOTS_FREE), tag.attributes.get(SLOTS_TOTAL)
    if not (isinstance(free, int | float) and isinstance(total, int | float) and total > 0):
        return nan
    return min(max(free / total, 0.0), 1.0)


HEALTHY, DOUBTFUL, UNHEALTHY = 1.0, 0.5, 0.0
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
