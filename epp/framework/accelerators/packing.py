# SPDX-License-Identifier: Apache-2.0
"""Placement of requests among GPUs: templates of the cluster, and the share of each endpoint's GPUs in use."""

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from types import MappingProxyType

import msgspec
import numpy as np

from epp.framework.accelerators.arrays import tag_numbers
from epp.framework.accelerators.tag import TFLOPS_USED, VIRTUAL, VRAM_USED, AcceleratorTag
from epp.framework.arrays import Floats, Mask
from epp.framework.candidates import Candidates
from epp.framework.limits import Count, Weight
from epp.framework.load import LOAD_INPUTS, fill_unknown
from epp.framework.plugin import Parameters
from epp.framework.scoring import require_weights
from epp.framework.snapshot import GPU_UTILIZATION, KV_USAGE, RUNNING, Attribute


class PlacementMode(StrEnum):
    """Order of GPUs."""

    COMPACT_FIRST = "CompactFirst"
    LOW_LOAD_FIRST = "LowLoadFirst"
    NODE_COMPACT = "NodeCompactGPULowLoad"


class PlacementTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A template that the cluster has."""

    name: str
    mode: PlacementMode = PlacementMode.NODE_COMPACT
    most_connections: int | None = None
    """Requests on one GPU at which it gets no more; None for no limit."""
    zone_label: str = ""
    """Label of nodes that all legs of a request must share; empty for none."""
    allow_local_gpu: bool = True
    """Whether endpoints may use the GPUs of the node that they run on."""


class EndpointPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Templates, as seen from an endpoint."""

    own: str = ""
    """Name of the template of its GPUPool; empty for none."""
    templates: Mapping[str, PlacementTemplate] = MappingProxyType({})
    """All templates by name."""
    is_local: bool = False
    """Whether it runs on the node of its GPUs."""

    def template(self, name: str) -> PlacementTemplate | None:
        """Return the template of that name, or the endpoint's own one for an empty name; None if there is none."""
        return self.templates.get(name or self.own)


NO_PLACEMENT = EndpointPlacement()
PLACEMENT: Attribute[EndpointPlacement] = Attribute("placement", NO_PLACEMENT, "accelerator-data-source")
"""Placement templates of the cluster, and the one of the endpoint."""


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
