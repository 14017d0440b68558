# SPDX-License-Identifier: Apache-2.0
"""The accelerator tagger: tags every endpoint with its hardware, from cluster objects, labels and declarations."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from threading import Lock
from typing import Literal

import msgspec
import structlog

from epp.framework.accelerators.arrays import PLACEMENT
from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, KnowsAccelerators, Report, every_endpoint
from epp.framework.endpoint import Endpoint
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.quantities import duration_setting
from epp.framework.snapshot import ACCELERATOR, NODE_LABELS
from epp.hardware.endpoint_context import TaggerOptions, affected_endpoints
from epp.hardware.facts.declared import ENDPOINT_LIST
from epp.hardware.facts.merge import Merged
from epp.hardware.inventory import Inventory
from epp.hardware.mig import profile_fault
from epp.hardware.node_devices import IDLE_METRICS, ClassTotals, IdleNode, IdleNodes, idle_samples
from epp.hardware.tables import Tables
from epp.hardware.tag_builder import TagBuilder
from epp.hardware.tensor_fusion import QUOTA_METRICS, quota_samples
from epp.kube.objects.core import Pod
from epp.kube.objects.decode import ALL_KINDS, CLUSTER_KINDS, MEMORY_QUOTA_KINDS, SCORER_KINDS
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.inference import INFERENCE_KINDS
from epp.kube.resources import ACCELERATORS, CONFIG_MAPS, PODS
from epp.runtime.followed_files import changes

_SLICE_MAPS = ObjectKind(*CONFIG_MAPS.key, names=r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""ConfigMaps of InstaSlice, whose names are UUIDs."""
_KINDS = tuple(ObjectKind(*each.key) for each in (PODS, *ACCELERATORS) if each != CONFIG_MAPS)
_MAX_WARNINGS = 100
"""Maximum number of logged warnings about endpoints for one version of the objects."""
_WARN_AGAIN_SECONDS = 600.0
"""Time after which a warning about an endpoint is repeated in a cluster with frequent changes."""

_MOST_CLASSES = 256
"""Maximum number of classes with metrics."""
_DEVICES = PluginMetric("accelerator_class_devices", "Devices of the nodes of an AcceleratorClass.", ("accelerator",))
_AVAILABLE = PluginMetric(
    "accelerator_class_available_devices", "Devices of an AcceleratorClass that no pod requests.", ("accelerator",)
)

_log = structlog.get_logger()


class AcceleratorTaggerParameters(TaggerOptions, frozen=True):
    """Sources of objects, and trust in them."""

    read_cluster: bool = True
    """Also read these objects from the Kubernetes cluster of the pool, if there is one. Kinds that are not installed,
    or that the picker may not list and watch, are skipped. An object in a file replaces one with the same name."""

    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects of a cluster: AcceleratorClass, Node, Pod,
    Instaslice, NodeAccelerator, AllocationClaim, GPU, GPUNode, GPUPool, SchedulingConfigTemplate, GPUResourceQuota,
    ResourceSlice, ResourceClaim, DeviceClass, DeviceTaintRule, ResourceFlavor, VariantAutoscaling, and ConfigMaps with
    costs or of InstaSlice. A file can have several documents."""
    watch_files: bool = True
    """Apply new versions of all files together, within a second."""
    missing_file_grace_period: str = "5m"
    """Time for which the objects of a missing or empty file stay in effect: `0s` removes them at once. The default is
    the time after which Kubernetes evicts the pods of an unreachable node."""
    gpu_catalogue: str = ""
    """File with a GPU catalogue in the format of TensorFusion: a list of `{model, fullModelName, vendor, costPerHour,
    fp16TFlops, partitionTemplates}`, which sets prices, TFLOPS and partitions of products, and adds products."""
    prices: str = ""
    """File with prices in US dollars an hour, on demand and spot, in YAML, JSON or CSV: a list `prices` of
    `{accelerator, class, instanceType, region, per, devices, perHour, spotPerHour}`. See docs/files-and-prices.md."""
    unknown_classes: Literal["lenient", "strict"] = "lenient"
    """Treatment of a configuration with an unknown AcceleratorClass or model in a plugin: `lenient` warns and ignores
    the name, `strict` rejects the configuration. The classes of a cluster are unknown while a configuration is loaded,
    so `strict` is for classes in files and products of the catalogue."""
    defaults: AcceleratorDeclaration | None = None
    """Accelerator of endpoints with unknown hardware."""
    pods_on_idle_nodes: bool = False
    """Count the devices of pods of other namespaces on nodes without an endpoint, which otherwise appear idle: list the
    pods of at most 100 such nodes per minute. This requires the right to list pods in all namespaces."""

    def __post_init__(self) -> None:
        duration_setting("missingFileGracePeriod", self.missing_file_grace_period, positive=False)
        declared = [(f"overrides[{index}].accelerator", each.accelerator) for index, each in enumerate(self.overrides)]
        for place, each in (*declared, ("defaults", self.defaults)):
            if each is not None and each.profile and (fault := profile_fault(each.profile, each.accelerator_class)):
                raise ValueError(f"{place}.profile {fault}")


class AcceleratorTagger(KnowsAccelerators[AcceleratorTaggerParameters], FollowsObjects[AcceleratorTaggerParameters]):
    """Merges the facts of all sources on an endpoint's hardware into its accelerator tag, field by field.

    Precedence: `overrides` and the endpoint list's own `accelerator`; the class named by a trusted pod; claims (DRA,
    then InstaSlice, then TensorFusion); the matching AcceleratorClass; labels of the node; resource requests of the
    pod; built-in tables of products and machine types. Labels of an endpoint without a known pod count as labels of its
    node.

    An invalid version of a file or of an object changes nothing: the previous version stays in effect, and the log,
    `/healthz` and `llm_d_epp_input_problems` have the reason. Without a previous version, the object is skipped. The
    objects of a missing file are kept for `missingFileGracePeriod`.

    An object with an impossible value, such as a MIG profile that the GPU cannot have or a negative price, is used
    without it: the log, `/healthz` and `llm_d_epp_input_values_ignored` have field, value and remedy.

    A changed object of the cluster takes effect immediately for the affected endpoints. A kind that is not installed or
    forbidden is skipped until it is available.
    """

    plugin_type = "accelerator-data-source"
    writes = (ACCELERATOR, NODE_LABELS, PLACEMENT)
    metrics = (_DEVICES, _AVAILABLE, *QUOTA_METRICS, *IDLE_METRICS)

    def setup(self) -> None:
        self.inventory = Inventory()
        """Objects in effect."""
        self._totals = ClassTotals()
        self._idle = IdleNodes()
        self._nodes_of: dict[tuple[str, str], str] = {}
        """Nodes of the endpoints of this cluster, by id and address: with a new pool, an id may get another address."""
        self._tables = Tables.first(self.parameters.gpu_catalogue, self.parameters.prices)
        self._builder = self._new_builder()
        self._idle_lock = Lock()
        self.pods_on_nodes: Mapping[str, tuple[Pod, ...]] = {}
        """Pods of all namespaces that use accelerators on nodes without an endpoint, by node."""
        self.pods_problem = ""
        """Reason that `pods_on_nodes` is not up to date; empty if it is."""
        self._endpoint_problems: set[str] = set()
        self._warned_since = self.clock.now()
        self.start_following(
            self.parameters.paths,
            ALL_KINDS - INFERENCE_KINDS - CLUSTER_KINDS - SCORER_KINDS - MEMORY_QUOTA_KINDS,
            grace_period=self.parameters.missing_file_grace_period,
        )
        self._objects.report(self.sentences)

    @property
    def has_prices(self) -> bool:
        own = (self.parameters.defaults, *(override.accelerator for override in self.parameters.overrides))
        declared = any(each is not None and each.cost_per_hour is not None for each in own)
        return declared or self._tables.has_prices or self.inventory.has_prices

    @property
    def inputs(self) -> InputState:
        objects, tables = self._objects.inputs, self._tables.inputs
        return InputState(
            (*objects.problems, *tables.problems),
            {**objects.rejected, **tables.rejected},
            ignored=self.inventory.ignored,
            remarks=(*self.inventory.remarks, *tables.remarks),
        )

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """All kinds that describe hardware; ConfigMaps only while an Instaslice object names one."""
        results = (result for each in self.inventory.instaslices.values() for result in each.results.values())
        maps = (_SLICE_MAPS,) if any(result.config_map for result in results) else ()
        return (*_KINDS, *maps) if self.parameters.read_cluster else ()

    def can_read(self, kind: ObjectKind) -> bool:
        return kind._replace(version="") in (*_KINDS, _SLICE_MAPS)

    @property
    def selectors(self) -> Sequence[str]:
        return self.inventory.selectors

    @property
    def refuses_unknown(self) -> bool:  # type: ignore[override]  # depends on a parameter
        return self.parameters.unknown_classes == "strict"

    @property
    def samples(self) -> Sequence[Sample]:
        """Total and available devices of each class; limits and use of at most 100 quotas."""
        found: list[Sample] = []
        for name, total in islice(self._totals.of(self.inventory).items(), _MOST_CLASSES):
            found += [Sample(_DEVICES, total.total, (name,)), Sample(_AVAILABLE, total.available, (name,))]
        return [*found, *quota_samples(self.inventory.gpu_quotas.values()), *idle_samples(self.idle_nodes())]

    def tag(self, endpoint: Endpoint) -> Report:
        """Return the tag; log each problem once for each version of the objects."""
        merged = self.merged(endpoint)
        if not endpoint.cluster or endpoint.cluster == self.parameters.cluster:
            self._nodes_of[endpoint.id, endpoint.hostport] = merged.tag.node
        for problem in (*merged.conflicts, *merged.warnings):
            if problem not in self._endpoint_problems and len(self._endpoint_problems) < _MAX_WARNINGS:
                self._endpoint_problems.add(problem)
                _log.warning("endpoint accelerator problem", plugin=self.name, endpoint=endpoint.id, problem=problem)
        return self._report(endpoint, merged)

    def untag(self, endpoint: Endpoint) -> None:
        self._nodes_of.pop((endpoint.id, endpoint.hostport), None)

    def idle_nodes(self) -> Sequence[IdleNode]:
        """Return the nodes with accelerators and without an endpoint, the most expensive first; for any thread."""
        with self._idle_lock:
            serving = frozenset(list(self._nodes_of.values()))
            return self._idle.of(self.inventory, self._builder, self._tables, serving, self.pods_on_nodes)

    @property
    def unseen_pods(self) -> str:
        """Reason that devices used by pods of other namespaces may appear idle; empty if they do not."""
        if not self.parameters.read_cluster or not self._objects.cluster:
            return ""
        if self.parameters.pods_on_idle_nodes:
            return self.pods_problem
        return "pods of other namespaces are not read: set podsOnIdleNodes of accelerator-data-source to read them"

    def tag_made_up(self, endpoint: Endpoint) -> Report:
        return self._report(endpoint, self.merged(endpoint))

    def _report(self, endpoint: Endpoint, merged: Merged) -> Report:
        context = self._builder.context(endpoint)
        return Report(
            attributes={
                ACCELERATOR: merged.tag.located(),
                NODE_LABELS: self._builder.node_labels(context),
                PLACEMENT: self._builder.placement(context),
            },
            uid="" if context.pod is None else context.pod.metadata.uid,
            boot_id=context.boot_id,
        )

    def merged(self, endpoint: Endpoint) -> Merged:
        merged = self._builder.build(endpoint)
        defaults = self.parameters.defaults
        if merged.tag.kind is not AcceleratorKind.UNKNOWN or defaults is None or endpoint.accelerator is not None:
            return merged
        assumed = self._builder.build(dataclasses.replace(endpoint, accelerator=defaults))
        sources = assumed.tag.provenance
        provenance = {field: "defaults" if of == ENDPOINT_LIST else of for field, of in sources.items()}
        return msgspec.structs.replace(assumed, tag=msgspec.structs.replace(assumed.tag, provenance=provenance))

    def knows(self, name: str) -> bool:
        classes = {known.lower() for known in self.inventory.classes}
        return name.lower() in classes or self._tables.catalogue.find(name) is not None

    @property
    def placement_templates(self) -> Collection[str]:
        return self.inventory.scheduling_templates.keys()

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        if not (self.parameters.watch_files and (self._objects.paths or self._tables.files)):
            return
        async for _ in changes():
            if (affected := await self.check()) is not None:
                changed(affected)

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:
        """Return the inventory of these objects; a change in the cluster affects the endpoints of the objects."""
        before, cluster = self.inventory, self._objects.cluster
        inventory = Inventory.build(change.files, before)

        def effect() -> AffectedEndpoints:
            self._assign(inventory, self._tables)
            if self.clock.now() - self._warned_since > _WARN_AGAIN_SECONDS:
                self._endpoint_problems.clear()
                self._warned_since = self.clock.now()
            return affected_endpoints(kinds, cluster, change.cluster, (before, inventory))

        return effect

    def _read(self) -> Effect | None:
        """Return the effect of the objects in files, and of the tables; None without a change. Runs in a thread."""
        now = self.clock.now()
        change, tables = self._objects.read(now), self._tables.after(now)
        if change is None and tables is self._tables:
            return None
        found = change or self._objects.present
        inventory = Inventory.build(found.files, self.inventory)

        def effect() -> AffectedEndpoints:
            self._endpoint_problems.clear()
            self._assign(inventory, tables)
            return every_endpoint

        return partial(self.put_into_effect, found, effect)

    def _assign(self, inventory: Inventory, tables: Tables) -> None:
        self.inventory, self._tables = inventory, tables
        self._builder = self._new_builder()

    def _new_builder(self) -> TagBuilder:
        return TagBuilder(self.inventory, self.parameters, self._tables.catalogue, self._tables.prices)
