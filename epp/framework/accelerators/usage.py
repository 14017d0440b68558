# SPDX-License-Identifier: Apache-2.0
"""Share of an endpoint's GPUs in use: memory and TFLOPS, weighted."""

from math import inf

import numpy as np

from epp.framework.accelerators.arrays import tag_numbers
from epp.framework.accelerators.tag import TFLOPS_USED, VIRTUAL, VRAM_USED, AcceleratorTag
from epp.framework.arrays import Floats, Mask
from epp.framework.candidates import Candidates
from epp.framework.limits import Count, Weight
from epp.framework.load import LOAD_INPUTS, fill_unknown
from epp.framework.plugin import Parameters
from epp.framework.scoring import require_weights
from epp.framework.snapshot import GPU_UTILIZATION, KV_USAGE, RUNNING

UNKNOWN_SCORE = 0.5
USAGE_INPUTS = (KV_USAGE, GPU_UTILIZATION, *LOAD_INPUTS)
"""Columns that the usage is read or estimated from."""


class GpuUsageParameters(Parameters, frozen=True):
    """Weights of memory and compute."""

    vram_weight: Weight = 0.7
    """Weight of the memory in use."""
    tflops_weight: Weight = 0.3
    """Weight of the TFLOPS in use."""
    max_num_seqs: Count = 256
    """Running requests at which an engine is fully used; for endpoints without a GPU allocator that reports usage."""
    use_virtual_capacity: bool = False
    """Count what TensorFusion sells on nodes with more virtual than physical capacity, which fit more requests but
    slow each other down; by default what these nodes have."""

    def __post_init__(self) -> None:
        """Refuse weights that are all 0."""
        require_weights({"vramWeight": self.vram_weight, "tflopsWeight": self.tflops_weight})


def used_share(candidates: Candidates, parameters: GpuUsageParameters) -> tuple[Floats, Mask]:
    """Return the share of each endpoint's GPUs in use, 0..1 or NaN for unknown, and a mask of those without capacity.

    If memory or TFLOPS are unknown, or have weight 0, the other one alone counts.
    """
    suffix = VIRTUAL if parameters.use_virtual_capacity else ""
    vram = tag_numbers(candidates, _fraction, VRAM_USED, suffix)
    tflops = tag_numbers(candidates, _fraction, TFLOPS_USED, suffix)
    empty = np.isinf(vram) | np.isinf(tflops)
    batch = candidates.values(RUNNING) / parameters.max_num_seqs
    busy = np.where(np.isnan(batch), candidates.values(GPU_UTILIZATION), batch)
    shares = np.array(
        [np.where(np.isnan(vram), candidates.values(KV_USAGE), vram), np.where(np.isnan(tflops), busy, tflops)]
    )
    weights = np.array([[parameters.vram_weight], [parameters.tflops_weight]])
    known = np.isfinite(shares)
    weight = (weights * known).sum(axis=0)
    used = (weights * np.where(known, np.clip(shares, 0.0, 1.0), 0.0)).sum(axis=0)
    return np.divide(used, weight, out=np.full(len(weight), np.nan), where=weight > 0), empty


def estimated_share(candidates: Candidates, parameters: GpuUsageParameters) -> tuple[Floats, Mask]:
    """Return the same, where an unknown share is estimated from requests in flight."""
    used, empty = used_share(candidates, parameters)
    return np.minimum(fill_unknown(used, candidates, per_request=1.0 / parameters.max_num_seqs), 1.0), empty


def _fraction(tag: AcceleratorTag, attribute: str, suffix: str) -> float | None:
    """Return the attribute, infinity for a capacity of 0, None if not reported."""
    value = tag.attributes.get(attribute + suffix, tag.attributes.get(attribute))
    if not isinstance(value, int | float):
        return None
    return min(float(value), 1.0) if value >= 0 else inf
