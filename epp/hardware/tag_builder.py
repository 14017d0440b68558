# SPDX-License-Identifier: Apache-2.0
"""Tag of an endpoint: the facts of all sources, merged by field."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from epp.framework.accelerators.arrays import NO_PLACEMENT, EndpointPlacement
from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind, Partition, Sharing
from epp.framework.endpoint import Endpoint
from epp.framework.plugin import Parameters
from epp.framework.snapshot import NODE_NAME
from epp.hardware.catalogue import CATALOGUE, Catalogue, InstanceType, features_of
from epp.hardware.class_matching import Evidence, matching_classes, pci_of
from epp.hardware.dra_devices import Allocated, allocated_devices, claims_of, resource_keys
from epp.hardware.endpoint_context import EndpointContext, Placements, context_of
from epp.hardware.facts import Facts, Merged, Rank, merge
from epp.hardware.facts.declared import (
    ENDPOINT_LIST,
    AcceleratorOverride,
    Declared,
    class_facts,
    class_on_pod,
    declared_facts,
    override_source,
)
from epp.hardware.facts.dra import dra_facts
from epp.hardware.facts.instaslice import instaslice_facts
from epp.hardware.facts.merge import DrainOrIgnore, PassOrDrain
from epp.hardware.facts.pod import cpu_facts, endpoint_facts, frozen_facts, pod_facts
from epp.hardware.facts.prices import (
    CostUnit,
    cost_facts,
    cost_warnings,
    devices_of_machine,
    listed_prices,
    with_listed_prices,
)
from epp.hardware.facts.tensor_fusion import DOMAIN, tensor_fusion_facts, tensor_fusion_gpus
from epp.hardware.inventory import Inventory
from epp.hardware.labels import NodeFacts, facts_from_labels, spot_from_labels, with_label_aliases
from epp.hardware.mig import is_unknown_slice
from epp.hardware.prices import PriceList
from epp.hardware.resources import ResourceRequest, possible, resource_key, resource_requests
from epp.hardware.validation import IGNORED, gpus_of_node
from epp.kube.objects.ome import AcceleratorClass

_VENDOR_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


class TaggerOptions(Parameters, frozen=True):
    """Trust in sources, and defaults for missing facts."""

    trust_pod_labels: bool = False
    """Use the AcceleratorClass in labels of a pod, and use labels of a pod in place of those of an unknown node."""
    on_missing_claim: PassOrDrain = "Pass"
    """Treatment of an endpoint whose pod requests a slice without a claim for it."""
    on_node_not_ready: DrainOrIgnore = "Drain"
    """Treatment of endpoints on a node whose InstaSlice agent is not ready."""
    on_unhealthy_device: DrainOrIgnore = "Drain"
    """Treatment of an endpoint with a device that the kubelet reports as unhealthy."""
    on_pending_gpu: PassOrDrain = "Drain"
    """Treatment of an endpoint with a GPU in the TensorFusion phase Pending. To send requests there, also set
    `allowPending` of `accelerator-availability-filter`, if that is configured."""
    cost_unit: CostUnit = "cents"
    """Unit of the hourly prices of the variant autoscaler."""
    instance_types: Mapping[str, InstanceType] = msgspec.field(default_factory=dict)
    """Accelerators by machine type; they take precedence over the built-in table."""
    overrides: tuple[AcceleratorOverride, ...] = ()
    """Accelerators of endpoints, in place of those of other sources; the first matching entry is used."""
    tensor_fusion_domain: str = DOMAIN
    """Domain of the TensorFusion annotations on pods."""
    cluster: str = ""
    """Name of the cluster of the objects. Endpoints in other clusters do not match its pods and nodes."""


class TagBuilder:
    """Builds the tags of endpoints from one inventory."""

    def __init__(
        self,
        inventory: Inventory,
        options: TaggerOptions | None = None,
        catalogue: Catalogue = CATALOGUE,
        prices: PriceList | None = None,
    ) -> None:
        self._options = options or TaggerOptions()
        self._catalogue = catalogue
        self._prices = prices or PriceList()
        self._inventory = inventory
        self._elsewhere = Inventory(
            classes=inventory.classes, flavors=inventory.flavors, expressions=inventory.expressions
        )
        self._resource_names = frozenset(
            [resource.name for each in inventory.classes.values() for resource in each.spec.resources]
            + [each.extended_resource_name for each in inventory.device_classes.values() if each.extended_resource_name]
        )
        self._node_facts: dict[str, NodeFacts] = {}
        self._placements = Placements(inventory, self._options.tensor_fusion_domain)
        self._node_labels: dict[str, Mapping[str, str]] = {}

    def build(self, endpoint: Endpoint) -> Merged:
        """Return the tag of the endpoint, and the problems of its sources."""
        options = self._options
        inventory = self._inventory_of(endpoint)
        local = inventory is self._inventory
        context = context_of(endpoint, inventory, trust_pod_labels=options.trust_pod_labels)
        declared = self._declared(context)
        warnings = (*declared.warnings, *(() if local else self._cluster_warnings(endpoint)))
        requested = () if context.pod is None else resource_requests(context.pod, self._resource_names)
        if any(each.is_slice for each in requested):
            requested = possible(requested, gpus_of_node(context.node, inventory.slice_nodes.get(context.node_name)))
        devices = allocated_devices(context, inventory)
        gpus = tensor_fusion_gpus(context, inventory, options.tensor_fusion_domain)
        allocated = [
            *dra_facts(context, inventory, devices, self._catalogue, on_unhealthy=options.on_unhealthy_device),
            *instaslice_facts(
                context,
                inventory,
                requested,
                on_missing_claim=options.on_missing_claim,
                on_node_not_ready=options.on_node_not_ready,
            ),
            *tensor_fusion_facts(
                context,
                gpus,
                inventory,
                self._catalogue,
                annotation_domain=options.tensor_fusion_domain,
                on_pending=options.on_pending_gpu,
            ),
        ]
        frozen = frozen_facts(context, options.tensor_fusion_domain)
        warnings = (*warnings, *frozen.warnings)
        place = endpoint_facts(context, inventory, options.cluster)
        if context.pod is not None and not (
            declared.facts or requested or allocated or self._may_have_accelerators(context, inventory)
        ):
            merged = merge([cpu_facts(context.pod), place, *frozen.facts, *_spot(context.node_labels)])
            return msgspec.structs.replace(merged, warnings=warnings)
        node = self._facts_of_node(context)
        labels, by_machine = _split(node.facts)
        own = [*declared.facts, *allocated, *pod_facts(context, requested, node, inventory, self._catalogue)]
        unknown = [each for each in requested if not each.known and not declared.facts and not allocated]
        if unknown or self._contradicted(own, labels):
            labels, by_machine = _spot(context.node_labels), []
        keys = {resource_key(each.name) for each in requested if each.profile or not each.is_slice} | resource_keys(
            devices, inventory
        )
        keys |= {_VENDOR_RESOURCES.get(gpu.status.vendor.lower(), "nvidia.com/gpu") for gpu in gpus}
        classes = self._classes(context, inventory, devices, [*own, *labels], keys=keys)
        of_class = [] if declared.classes or not classes else [self._of_class(classes[0], [*own, *labels])]
        names = dict.fromkeys((*declared.classes, *(each.name for each in classes)))
        known = _with_shares([place, *frozen.facts, *own, *of_class, *labels])
        if is_unknown_slice(_partition(known)):
            known, by_machine = _without_figures(known), _without_figures(by_machine)
        count = devices_of_machine(context, node, options.instance_types)
        merged = self._merged(known, by_machine, context, inventory, classes=tuple(names), machine_devices=count)
        of_resources = _resource_warnings(unknown) if merged.tag.kind is AcceleratorKind.UNKNOWN else ()
        # labels without effect are reported for the node
        of_labels = [text for text in node.warnings if context.node is None or not text.endswith(IGNORED)]
        return msgspec.structs.replace(merged, warnings=(*warnings, *of_labels, *of_resources, *merged.warnings))

    def context(self, endpoint: Endpoint) -> EndpointContext:
        """Return pod and node of the endpoint."""
        inventory = self._inventory_of(endpoint)
        return context_of(endpoint, inventory, trust_pod_labels=self._options.trust_pod_labels)

    def placement(self, context: EndpointContext) -> EndpointPlacement:
        """Return the placement templates of the endpoint's cluster."""
        inventory = self._inventory_of(context.endpoint)
        gpus = tensor_fusion_gpus(context, inventory, self._options.tensor_fusion_domain)
        return self._placements.of(context, gpus) if inventory is self._inventory else NO_PLACEMENT

    def node_labels(self, context: EndpointContext) -> Mapping[str, str]:
        """Return the labels of the node, with its name as `metadata.name`; endpoints of a node share one mapping."""
        if context.node is None:
            named = {NODE_NAME: context.node_name} if context.node_name else {}
            return {**context.node_labels, **named}
        found = self._node_labels.get(context.node.name)
        if found is None:
            labels = {**context.node_labels, NODE_NAME: context.node.name}
            found = self._node_labels[context.node.name] = MappingProxyType(labels)
        return found

    def _inventory_of(self, endpoint: Endpoint) -> Inventory:
        local = not endpoint.cluster or endpoint.cluster == self._options.cluster
        return self._inventory if local else self._elsewhere

    def _cluster_warnings(self, endpoint: Endpoint) -> Iterator[str]:
        """Yield a warning if the endpoint has a cluster, but the objects have none."""
        if not self._options.cluster and (self._inventory.pods or self._inventory.nodes):
            yield (
                f"the endpoint is in cluster {endpoint.cluster!r}, and the cluster of the object files is not set: "
                f"their pods and nodes are ignored; if it is the same cluster, write cluster: {endpoint.cluster}"
            )

    def _may_have_accelerators(self, context: EndpointContext, inventory: Inventory) -> bool:
        """Return whether the pod has claims or annotations for accelerators."""
        annotations = {} if context.pod is None else context.pod.metadata.annotations
        domain = f"{self._options.tensor_fusion_domain}/"
        return bool(claims_of(context, inventory)) or any(key.startswith(domain) for key in annotations)

    def _merged(
        self,
        known: list[Facts],
        by_machine: list[Facts],
        context: EndpointContext,
        inventory: Inventory,
        *,
        classes: tuple[str, ...],
        machine_devices: int | None,
    ) -> Merged:
        """Return the tag with prices and catalogue facts about its product."""
        draft = merge(known).tag
        whole = None if draft.memory_bytes is None else int(draft.memory_bytes / (draft.partition.memory_fraction or 1))
        texts = (text for text in (draft.product, draft.model) if text)
        meant = next((found for text in texts if (found := self._catalogue.meant(text, whole))), ())
        looked_up = {fact.product for fact in by_machine}
        product = next((found for found in meant if found.name in looked_up), next(iter(meant), None))
        table = [product.facts(partition=draft.partition)] if product else self._of_part(by_machine, draft.partition)
        unknown = is_unknown_slice(draft.partition)
        if unknown:
            table = _without_figures(table)
        draft = merge([*known, *table]).tag
        listed = listed_prices(self._prices, draft, product, classes, context, devices=machine_devices)
        if not unknown:
            known = with_listed_prices(known, listed.facts)
            known += cost_facts(draft, context, inventory, self._catalogue, self._options.cost_unit)
        merged = merge([*known, *table], classes)
        tag = merged.tag
        priced = tag.cost.per_hour is not None
        warnings = () if priced else (*cost_warnings(context, inventory), *([listed.remark] if listed.remark else []))
        if tag.vendor == "nvidia" and tag.compute_capability:
            tag = msgspec.structs.replace(tag, features=tag.features | features_of(tag.compute_capability))
        return Merged(tag, merged.conflicts, warnings)

    def _of_part(self, table: Iterable[Facts], part: Partition) -> list[Facts]:
        """Return the facts of tables for a partition of the device."""
        if part.memory_fraction == 1:
            return list(table)
        products = [(fact, self._catalogue.find(fact.product or "")) for fact in table]
        return [fact if product is None else product.facts(fact.source, part) for fact, product in products]

    def _declared(self, context: EndpointContext) -> Declared:
        """Return declared facts: of the endpoint list, of overrides, and of a trusted pod."""
        found: list[tuple[AcceleratorDeclaration, str, Rank]] = []
        if context.endpoint.accelerator is not None:
            found.append((context.endpoint.accelerator, ENDPOINT_LIST, Rank.OPERATOR))
        for number, override in enumerate(self._options.overrides, 1):
            if override.fits(context.endpoint, context.node_name):
                found.append((override.accelerator, override_source(number), Rank.OPERATOR))
                break
        if self._options.trust_pod_labels:
            pod = context.pod
            texts = () if pod is None else (pod.metadata.annotations, pod.metadata.labels)
            if name := class_on_pod(*texts, context.endpoint.labels):
                found.append((AcceleratorDeclaration(accelerator_class=name), "pod labels", Rank.POD))
        parts = [
            declared_facts(declaration, source, self._inventory.classes, self._catalogue, rank)
            for declaration, source, rank in found
        ]
        return Declared(
            tuple(fact for part in parts for fact in part.facts),
            tuple(name for part in parts for name in part.classes),
            tuple(warning for part in parts for warning in part.warnings),
        )

    def _facts_of_node(self, context: EndpointContext) -> NodeFacts:
        """Return the facts of labels, cached by node."""
        if context.node is None:
            return self._read_labels(context.node_labels)
        found = self._node_facts.get(context.node.name)
        if found is None:
            found = self._node_facts[context.node.name] = self._read_labels(context.node_labels)
        return found

    def _read_labels(self, labels: Mapping[str, str]) -> NodeFacts:
        return facts_from_labels(labels, instance_types=self._options.instance_types, catalogue=self._catalogue)

    def _contradicted(self, own: Sequence[Facts], labels: Sequence[Facts]) -> bool:
        """Return whether the labels have another vendor or product than the endpoint; nodes can have several."""
        vendors = {fact.vendor for fact in labels if fact.vendor}
        vendor = next((fact.vendor for fact in own if fact.vendor), None)
        if vendor and vendors and vendor not in vendors:
            return True
        labelled = [fact.product for fact in labels if fact.product]
        given = [fact.product or fact.model for fact in own if fact.product or fact.model]
        if not labelled or not given:
            return False
        theirs, ours = self._catalogue.find(labelled[0]), self._catalogue.find(given[0] or "")
        return theirs is not None and ours is not None and theirs.model != ours.model

    def _classes(
        self,
        context: EndpointContext,
        inventory: Inventory,
        devices: Sequence[Allocated],
        facts: Sequence[Facts],
        *,
        keys: set[str],
    ) -> tuple[AcceleratorClass, ...]:
        """Return the matching classes; `keys` are those of the resources of the endpoint."""
        part = _partition(facts)
        sliced = {f"mig/{part.profile}"} if part.kind is Sharing.MIG and part.profile else set[str]()
        if not keys and sliced:  # MIG strategy single: pods request slices as nvidia.com/gpu
            keys.add("nvidia.com/gpu")
        attributes = tuple((each.driver, each.attributes) for each in devices)
        evidence = Evidence(
            labels=with_label_aliases(context.node_labels),
            node=context.node_name,
            resources=frozenset(keys | sliced) if keys or sliced or self._requests_nothing(context, facts) else None,
            pci=pci_of(context.node_labels, attributes),
            devices=attributes,
        )
        return matching_classes(inventory.classes.values(), evidence, inventory.flavors, inventory.expressions)

    def _requests_nothing(self, context: EndpointContext, facts: Sequence[Facts]) -> bool:
        """Return whether the endpoint is known to have no resources."""
        return context.pod is not None and not any(fact.rank is Rank.OPERATOR for fact in facts)

    def _of_class(self, each: AcceleratorClass, facts: Sequence[Facts]) -> Facts:
        product = next((fact.product for fact in facts if fact.product), "") or ""
        return class_facts(each, self._catalogue, product=product)


def _split(facts: Iterable[Facts]) -> tuple[list[Facts], list[Facts]]:
    found = list(facts)
    return [f for f in found if f.rank < Rank.CATALOGUE], [f for f in found if f.rank >= Rank.CATALOGUE]


def _spot(labels: Mapping[str, str]) -> list[Facts]:
    spot = spot_from_labels(labels)
    return [] if spot is None else [Facts(source="labels", rank=Rank.LABELS, spot=spot)]


def _resource_warnings(requested: Iterable[ResourceRequest]) -> Iterator[str]:
    """Yield a warning for each unknown resource."""
    for each in requested:
        yield (
            f"the pod requests {each.name}, a resource with an unknown vendor: its accelerator is unknown; "
            "write an AcceleratorClass with this name under resources, or accelerator in the endpoint list"
        )


def _partition(facts: Iterable[Facts]) -> Partition:
    parts = [(fact.rank, fact.partition) for fact in facts if fact.partition is not None]
    return min(parts, key=lambda part: part[0], default=(Rank.SELF, Partition()))[1]


def _with_shares(facts: list[Facts]) -> list[Facts]:
    """Multiply the memory of whole devices, from classes and labels, by the share of the endpoint.

    Sources with a partition already have the memory of the partition.
    """
    part = _partition(facts)
    if part.memory_fraction == 1.0:
        return facts
    return [
        msgspec.structs.replace(fact, memory_bytes=int(fact.memory_bytes * part.memory_fraction))
        if fact.memory_bytes is not None and fact.partition is None and _describes_whole_device(fact)
        else fact
        for fact in facts
    ]


def _without_figures(facts: Iterable[Facts]) -> list[Facts]:
    """Remove memory, prices and speed of whole devices from the facts of all sources except declarations and claims."""
    return [fact if fact.rank < Rank.ALLOCATOR else fact.without_figures for fact in facts]


def _describes_whole_device(fact: Facts) -> bool:
    return fact.rank in {Rank.CLASS, Rank.LABELS} or fact.source.startswith("AcceleratorClass/")
