"""GPU, GPUNode, GPUResourceQuota and SchedulingConfigTemplate of tensor-fusion.ai."""

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from epp.accelerators.objects.base import ClusterObject, Object, Part
from epp.accelerators.objects.core import PodReference


class Amount(Part, frozen=True, kw_only=True, rename="camel"):
    """So much computing and so much memory."""

    tflops: Fraction | None = None
    compute: Fraction | None = None
    """Percent."""
    vram: Fraction | None = None
    """Bytes."""


class AppPod(PodReference, frozen=True, kw_only=True, rename="camel"):
    """A pod that uses a GPU."""

    requests: Amount = Amount()
    limits: Amount = Amount()
    qos: str = ""


class RunningApp(Part, frozen=True, kw_only=True, rename="camel"):
    """A workload that uses a GPU."""

    name: str = ""
    namespace: str = ""
    pods: tuple[AppPod, ...] = ()


class AllocatedPartition(Part, frozen=True, kw_only=True, rename="camel"):
    """A partition of a GPU that a pod has."""

    template_id: str = msgspec.field(default="", name="templateId")
    pod_uid: str = msgspec.field(default="", name="podUid")
    pod_name: str = ""
    namespace: str = ""
    allocated_slot_start: int | None = None
    allocated_slot_end: int | None = None


class GpuPeer(Part, frozen=True, kw_only=True, rename="camel"):
    """Another GPU and how near it is: tier 0 is a direct link, 1 the same NUMA node, 2 another one, 3 unknown."""

    uuid: str = msgspec.field(default="", name="peerGPUUUID")
    tier: int = 3


class GpuTopology(Part, frozen=True, kw_only=True, rename="camel"):
    """Other GPUs of the node."""

    peers: tuple[GpuPeer, ...] = ()


class GpuStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """Everything about a GPU."""

    phase: str = ""
    vendor: str = ""
    model: str = ""
    gpu_model: str = ""
    uuid: str = ""
    index: int | None = None
    numa_node: int | None = None
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    capacity: Amount = Amount()
    available: Amount = Amount()
    used_by: str = ""
    isolation_mode: str = ""
    message: str = ""
    running_apps: tuple[RunningApp, ...] = ()
    allocated_partitions: Mapping[str, AllocatedPartition] = msgspec.field(default_factory=dict)
    topology: GpuTopology = GpuTopology()


class Gpu(ClusterObject, frozen=True, kw_only=True, rename="camel"):
    """A GPU that TensorFusion shares out."""

    status: GpuStatus = GpuStatus()

    @property
    def node(self) -> str:
        """Name of its node; empty where the object does not say."""
        return self.status.node_selector.get("kubernetes.io/hostname", "")


class GpuNodeSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """What a node with GPUs costs, all of it, in US dollars an hour."""

    cost_per_hour: Fraction | None = None


class GpuNodeStatus(Part, frozen=True, kw_only=True, rename="camel"):
    """What the node has."""

    phase: str = ""
    total_tflops: Fraction | None = msgspec.field(default=None, name="totalTFlops")
    total_vram: Fraction | None = msgspec.field(default=None, name="totalVRAM")
    virtual_tflops: Fraction | None = msgspec.field(default=None, name="virtualTFlops")
    virtual_vram: Fraction | None = msgspec.field(default=None, name="virtualVRAM")


class GpuNode(ClusterObject, frozen=True, kw_only=True, rename="camel"):
    """A node with GPUs that TensorFusion shares out."""

    spec: GpuNodeSpec = GpuNodeSpec()
    status: GpuNodeStatus = GpuNodeStatus()


class QuotaTotal(Part, frozen=True, kw_only=True, rename="camel"):
    """What all workloads of a namespace may have together."""

    requests: Amount = Amount()
    limits: Amount = Amount()
    max_workers: int | None = None
    alert_threshold_percent: int = 95


class QuotaSingle(Part, frozen=True, kw_only=True, rename="camel"):
    """What one workload may have."""

    max_requests: Amount = Amount()
    max_limits: Amount = Amount()
    max_gpu_count: int | None = msgspec.field(default=None, name="maxGPUCount")


class QuotaSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """Both."""

    total: QuotaTotal = QuotaTotal()
    single: QuotaSingle = QuotaSingle()


class GpuResourceQuota(Object, frozen=True, kw_only=True, rename="camel"):
    """Quota of a namespace."""

    spec: QuotaSpec = QuotaSpec()


class PlacementMode(Part, frozen=True, kw_only=True, rename="camel"):
    """How GPUs are chosen."""

    mode: str = "NodeCompactGPULowLoad"
    allow_using_local_gpu: bool = msgspec.field(default=True, name="allowUsingLocalGPU")


class SchedulingConfigSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """How workloads are placed."""

    placement: PlacementMode = PlacementMode()


class SchedulingConfigTemplate(Object, frozen=True, kw_only=True, rename="camel"):
    """How the workloads of a pool are placed."""

    spec: SchedulingConfigSpec = SchedulingConfigSpec()
