"""Prefers the smallest accelerator that is large and fast enough, so that larger ones stay free for what needs them."""

from math import isfinite
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from epp.framework import Candidates, Category, Clock, Floats, Parameters, Request, Scorer
from epp.framework.accelerator_arrays import tag_numbers
from epp.framework.accelerators import AcceleratorKind, AcceleratorTag
from epp.framework.memory import memory_suffices, parse_memory
from epp.framework.scoring import require_weights
from epp.framework.snapshot import ACCELERATOR

Precision: TypeAlias = Literal["fp32", "fp16", "fp8", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "fp8", "int8", "int4")

_STEP = 0.5
"""What each place down the list of preferred precisions costs."""


class BestFitParameters(Parameters, frozen=True):
    """What the requests need of one device, and how memory and compute are weighed."""

    min_memory: str | float | None = None
    """Memory that one device must have: a quantity such as `40Gi`, or a number of GiB."""
    min_compute_tflops: float | None = msgspec.field(default=None, name="minComputeTFLOPS")
    """TFLOPS, or TOPS, from which a device is fast enough; without it any figure is."""
    preferred_precisions: tuple[Precision, ...] = ()
    """Precisions to compute in, the best first: the first one with a figure counts, halved for each place down."""
    memory_weight: float = 0.7
    """Weight of the fit of the memory."""
    compute_weight: float = 0.3
    """Weight of the compute."""

    def __post_init__(self) -> None:
        """Refuse what cannot be met or says nothing."""
        require_weights({"memoryWeight": self.memory_weight, "computeWeight": self.compute_weight})
        if self.min_memory is not None:
            parse_memory(self.min_memory)
        required = self.min_compute_tflops
        if required is not None and not (isfinite(required) and required >= 0):
            raise ValueError(f"minComputeTFLOPS is {required}; it must be 0 or more")


class BestFitScorer(Scorer[BestFitParameters]):
    """`0.7 * M + 0.3 * C`, over the sum of the weights.

    `M` is `minMemory / memory` of one device or slice, 1 without `minMemory`, 0 where the memory is not known. `C` is
    `min(1, tflops / minComputeTFLOPS)` of one device or slice, 1 for any figure where nothing is required, times 0.5
    for each place of the precision down `preferredPrecisions`; after the last place comes fp16; fp8 goes by the INT8
    figure where it has none of its own. Without `preferredPrecisions` the largest figure counts; without figures `C`
    is 0. An endpoint with less than `minMemory` (3 % below it is enough: nominal sizes are rounded up), one on CPUs,
    and one of which neither memory nor figures are known get 0.
    """

    plugin_type = "best-fit-scorer"
    category = Category.AFFINITY
    reads = (ACCELERATOR,)

    def __init__(
        self, parameters: BestFitParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        wanted = self.parameters.min_memory
        self._need_bytes = None if wanted is None else parse_memory(wanted)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        return np.clip(tag_numbers(candidates, self._score), 0.0, 1.0)

    def _score(self, tag: AcceleratorTag) -> float:
        compute = self._compute(tag)
        if tag.kind is AcceleratorKind.CPU or (tag.memory_bytes is None and not compute):
            return 0.0
        memory = self._memory(tag)
        if memory is None:
            return 0.0
        heavy, light = self.parameters.memory_weight, self.parameters.compute_weight
        return (heavy * memory + light * compute) / (heavy + light)

    def _memory(self, tag: AcceleratorTag) -> float | None:
        """Return `M`; None where the memory is too small."""
        if self._need_bytes is None:
            return 1.0
        if tag.memory_bytes is None:
            return 0.0
        if not memory_suffices(tag.memory_bytes, self._need_bytes):
            return None
        return min(1.0, self._need_bytes / tag.memory_bytes)

    def _compute(self, tag: AcceleratorTag) -> float:
        preferred = self.parameters.preferred_precisions
        if not preferred:
            return self._enough(max(device_tflops(tag, precision) for precision in PRECISIONS))
        for place, precision in enumerate((*preferred, "fp16")):
            tflops = device_tflops(tag, precision)
            if tflops:
                return float(self._enough(tflops) * _STEP**place)
        return 0.0

    def _enough(self, tflops: float) -> float:
        required = self.parameters.min_compute_tflops
        if not tflops or not required:
            return float(tflops > 0)
        return min(1.0, tflops / required)


def device_tflops(tag: AcceleratorTag, precision: str) -> float:
    """Return the figure of one device or slice; 0 where it is not known, or is no figure."""
    tflops = tag.tflops(precision) / max(tag.count, 1)
    return tflops if isfinite(tflops) and tflops > 0 else 0.0
