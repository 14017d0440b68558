# SPDX-License-Identifier: Apache-2.0
"""GPUPool and SchedulingConfigTemplate of tensor-fusion.ai: pools of GPUs, and the placement on them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.kube.objects.base import ClusterObject, Part


class GpuPoolSpec(Part, frozen=True, kw_only=True):
    """Spec of a pool."""

    scheduling_config_template: str = ""
    """Name of its SchedulingConfigTemplate."""


class GpuPool(ClusterObject, frozen=True, kw_only=True):
    """A pool of GPUs."""

    spec: GpuPoolSpec = GpuPoolSpec()


class GpuFilter(Part, frozen=True, kw_only=True):
    """A condition on GPUs."""

    type: str = ""
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Placement(Part, frozen=True, kw_only=True):
    """Placement of workloads on GPUs."""

    mode: str = "NodeCompactGPULowLoad"
    allow_using_local_gpu: bool = msgspec.field(default=True, name="allowUsingLocalGPU")
    gpu_filters: tuple[GpuFilter, ...] = ()


class SchedulingConfigSpec(Part, frozen=True, kw_only=True):
    """Spec of a scheduling template."""

    placement: Placement = Placement()


class SchedulingConfigTemplate(ClusterObject, frozen=True, kw_only=True):
    """Scheduling template of pools."""

    spec: SchedulingConfigSpec = SchedulingConfigSpec()
