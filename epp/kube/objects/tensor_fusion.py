# SPDX-License-Identifier: Apache-2.0
"""GPU, GPUNode, GPUPool, SchedulingConfigTemplate and GPUResourceQuota of tensor-fusion.ai."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from epp.kube.objects.base import ClusterObject, Object, Part
from epp.kube.objects.core import PodReference
from epp.kube.objects.limits import (
    AlertPercent,
    GpuCount,
    LargePrice,
    LinkBandwidth,
    LinkTier,
    Memory,
    Number,
    Percent,
    Tflops,
    shown,
    shown_size,
)

_MOST_OF_A_GPU = (("tflops", 1_000_000, shown), ("vram", 2**46, shown_size))


class Amount(Part, frozen=True, kw_only=True):
    tflops: Tflops = None
    compute: Percent = None
    vram: Memory = None


class AppPod(PodReference, frozen=True, kw_only=True):
    requests: Amount = Amount()
    limits: Amount = Amount()


class RunningApp(Part, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    pods: tuple[AppPod, ...] = ()


class AllocatedPartition(Part, frozen=True, kw_only=True):
    template_id: str = msgspec.field(default="", name="templateId")
    pod_uid: str = msgspec.field(default="", name="podUid")
    pod_name: str = ""
    namespace: str = ""
    allocated_slot_start: Number = None


class LinkedGpu(Part, frozen=True, kw_only=True):
    peer: str = msgspec.field(default="", name="peerGPUUUID")
    tier: LinkTier = 3
    bandwidth: LinkBandwidth = None


class NvLinkPeer(Part, frozen=True, kw_only=True):
    peer: str = msgspec.field(default="", name="peerUUID")
    bandwidth: LinkBandwidth = msgspec.field(default=None, name="bandwidthMBps")


class GpuStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    vendor: str = ""
    model: str = ""
    gpu_model: str = ""
    uuid: str = ""
    index: Number = None
    numa_node: int | None = None
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    capacity: Amount = Amount()
    available: Amount = Amount()
    used_by: str = ""
    isolation_mode: str = ""
    running_apps: tuple[RunningApp, ...] = ()
    allocated_partitions: Mapping[str, AllocatedPartition] = msgspec.field(default_factory=dict)


class Gpu(ClusterObject, frozen=True, kw_only=True):
    status: GpuStatus = GpuStatus()
    linked: tuple[LinkedGpu, ...] = msgspec.field(default=(), name="status.topology.peers")
    nv_links: tuple[NvLinkPeer, ...] = msgspec.field(default=(), name="status.nvLink.peers")

    @property
    def node(self) -> str:
        """Name of the node; empty if unknown."""
        return self.status.node_selector.get("kubernetes.io/hostname", "")

    def contradiction(self) -> tuple[str, Self] | None:
        """Return a capacity beyond that of any GPU, or an available amount above the capacity."""
        capacity, available = self.status.capacity, self.status.available
        for name, most, written in _MOST_OF_A_GPU:
            whole, left = getattr(capacity, name), getattr(available, name)
            if whole is not None and whole > most:
                sentence = (
                    f"status.capacity.{name} is {written(whole)}, more than any GPU has: write the amount of one GPU"
                )
                return sentence, self._with(capacity=msgspec.structs.replace(capacity, **{name: None}))
            if whole is not None and left is not None and left > whole:
                sentence = (
                    f"status.available.{name} is {written(left)}, more than the capacity, {written(whole)}: "
                    "write the available part of it"
                )
                return sentence, self._with(available=msgspec.structs.replace(available, **{name: None}))
        return None

    def _with(self, **fields: Amount) -> Self:
        return msgspec.structs.replace(self, status=msgspec.structs.replace(self.status, **fields))


class GpuNode(ClusterObject, frozen=True, kw_only=True):
    cost_per_hour: LargePrice = msgspec.field(default=None, name="spec.costPerHour")
    """US dollars for the whole node."""
    total_vram: Memory = msgspec.field(default=None, name="status.totalVRAM")
    total_tflops: Tflops = msgspec.field(default=None, name="status.totalTFlops")
    virtual_vram: Memory = msgspec.field(default=None, name="status.virtualVRAM")
    """Allocatable memory, including host memory and disk that extend it."""
    virtual_tflops: Tflops = msgspec.field(default=None, name="status.virtualTFlops")
    """Allocatable TFLOPS, according to the oversell ratio."""


class QuotaTotal(Part, frozen=True, kw_only=True):
    """Limits for the sum of all workloads of a namespace."""

    requests: Amount = Amount()
    limits: Amount = Amount()
    max_workers: Number = None
    alert_threshold_percent: AlertPercent = 95


class QuotaSingle(Part, frozen=True, kw_only=True):
    """Limits of one workload."""

    max_requests: Amount = Amount()
    max_limits: Amount = Amount()
    max_gpu_count: GpuCount = msgspec.field(default=None, name="maxGPUCount")


class QuotaUsed(Part, frozen=True, kw_only=True):
    """Use by the workloads of a namespace."""

    requests: Amount = Amount()
    limits: Amount = Amount()
    workers: Number = None


class GpuResourceQuota(Object, frozen=True, kw_only=True):
    total: QuotaTotal = msgspec.field(default=QuotaTotal(), name="spec.total")
    single: QuotaSingle = msgspec.field(default=QuotaSingle(), name="spec.single")
    used: QuotaUsed = msgspec.field(default=QuotaUsed(), name="status.used")


class GpuPool(ClusterObject, frozen=True, kw_only=True):
    template: str = msgspec.field(default="", name="spec.schedulingConfigTemplate")


class GpuFilter(Part, frozen=True, kw_only=True):
    type: str = ""
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)


class SchedulingConfigTemplate(ClusterObject, frozen=True, kw_only=True):
    mode: str = msgspec.field(default="NodeCompactGPULowLoad", name="spec.placement.mode")
    allow_using_local_gpu: bool = msgspec.field(default=True, name="spec.placement.allowUsingLocalGPU")
    gpu_filters: tuple[GpuFilter, ...] = msgspec.field(default=(), name="spec.placement.gpuFilters")
