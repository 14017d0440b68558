# SPDX-License-Identifier: Apache-2.0
"""Prefers the endpoint with the largest and fastest accelerators."""

from math import isfinite
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from epp.framework import (
    ACCELERATOR,
    AcceleratorTag,
    Candidates,
    Category,
    Floats,
    Parameters,
    Request,
    Scorer,
    tag_numbers,
)
from epp.framework.accelerators.tag import AcceleratorKind, Precision
from epp.framework.limits import Weight, require_weights


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
        """Refuse weights that are all 0."""
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
    zero_means = "has no accelerator, or nothing is known of it"
    reads = (ACCELERATOR,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        parameters = self.parameters
        weights = np.array([parameters.memory_weight, parameters.bandwidth_weight, parameters.compute_weight])
        terms = np.array([_share(self._numbers(candidates, name)) for name in ("memory", "bandwidth", "tflops")])
        scores: Floats = np.clip(weights @ terms / weights.sum(), 0.0, 1.0)
        return scores

    def _numbers(self, candidates: Candidates, name: str) -> Floats:
        return tag_numbers(candidates, self._number, name)

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
