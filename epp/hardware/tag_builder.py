# SPDX-License-Identifier: Apache-2.0
"""Tag of an endpoint: the facts of all sources, merged by field, and the facts that no source has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from types import MappingProxyType

import msgspec

from epp.framework.accelerators.arrays import NO_PLACEMENT, EndpointPlacement
from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind, AcceleratorTag, Partition, Sharing
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import NODE_NAME
from epp.hardware.catalogue import CATALOGUE, Catalogue, features_of
from epp.hardware.classes import Evidence, matching_classes, pci_of
from epp.hardware.dra_devices import Allocated, allocated_devices, claims_of, resource_keys
from epp.hardware.endpoint_context import EndpointContext, TaggerOptions, context_of
from epp.hardware.facts.declared import (
    ENDPOINT_LIST,
    OVERRIDE,
    class_facts,
    class_on_pod,
    declared_facts,
    is_declaration,
)
from epp.hardware.facts.dra import dra_facts, instaslice_facts
from epp.hardware.facts.merge import Facts, Merged, Rank, merge
from epp.hardware.facts.pod import cost_facts, cost_warnings, endpoint_facts, frozen_facts, listed_prices, pod_facts
from epp.hardware.facts.tensor_fusion import tensor_fusion_facts, tensor_fusion_gpus
from epp.hardware.inventory import Inventory
from epp.hardware.label_reading import Reading, spot_from_labels, with_label_aliases
from epp.hardware.mig import is_unknown_slice
from epp.hardware.node_labels import NodeFacts, facts_from_labels
from epp.hardware.prices import PriceList
from epp.hardware.resources import resource_key, resource_requests
from epp.hardware.tensor_fusion import read_template
from epp.hardware.validation import IGNORED, gpus_of_node

_VENDOR_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


class TagBuilder:
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
        self._remote_inventory = Inventory(
            classes=inventory.classes, flavors=inventory.flavors, expressions=inventory.expressions
        )
        self._resource_names = frozenset(
            [resource.name for each in inventory.classes.values() for resource in each.spec.resources]
            + [each.extended_resource_name for each in inventory.device_classes.values() if each.extended_resource_name]
        )
        self._node_facts: dict[str, NodeFacts] = {}
        self._templates = MappingProxyType(
            {each.name: read_template(each)[0] for each in inventory.scheduling_templates.values()}
        )
        self._placements: dict[tuple[str, bool], EndpointPlacement] = {}
        """Equal endpoints share one record."""
        self._node_labels: dict[str, Mapping[str, str]] = {}

    def build(self, endpoint: Endpoint) -> Merged:
        context = self.context(endpoint)
        declared = list(self._declared(context))
        requested = () if context.pod is None else resource_requests(context.pod, self._resource_names)
        if any(each.is_slice for each in requested):
            fault_of = gpus_of_node(context.node, context.slicer).fault_of
            requested = tuple(
                msgspec.structs.replace(each, profile="") if each.profile and fault_of(each.profile) else each
                for each in requested
            )
        devices, gpus = allocated_devices(context), tensor_fusion_gpus(context)
        allocated = [
            *dra_facts(context, devices),
            *instaslice_facts(context, requested),
            *tensor_fusion_facts(context, gpus),
        ]
        general = [endpoint_facts(context), *frozen_facts(context)]
        warnings = [text for fact in declared for text in fact.warnings]
        warnings += [*self._cluster_warnings(context), *(text for fact in general for text in fact.warnings)]
        spot = Reading(spot=spot_from_labels(context.node_labels))
        domain = f"{self._options.tensor_fusion_domain}/"
        claimed = claims_of(context) or any(key.startswith(domain) for key in context.annotations)
        if context.pod is not None and not (declared or requested or allocated or claimed):
            cpu = Facts(source=f"Pod/{context.pod.id}", rank=Rank.RESOURCES, kind=AcceleratorKind.CPU)
            merged = merge([cpu, *general, spot])
            return msgspec.structs.replace(merged, warnings=tuple(warnings))
        node = self._facts_of_node(context)
        labels: list[Facts] = [fact for fact in node.facts if fact.rank < Rank.CATALOGUE]
        by_machine = [fact for fact in node.facts if fact.rank >= Rank.CATALOGUE]
        own = [*declared, *allocated, *pod_facts(context, requested, node)]
        unknown = [each for each in requested if not each.known and not declared and not allocated]
        if unknown or self._contradicted(own, labels):
            labels, by_machine = [spot], []
        keys = {resource_key(each.name) for each in requested if each.profile or not each.is_slice}
        keys |= resource_keys(devices, context.inventory)
        keys |= {_VENDOR_RESOURCES.get(gpu.status.vendor.lower(), "nvidia.com/gpu") for gpu in gpus}
        of_class = self._of_classes(context, devices, [*own, *labels], keys=keys)
        known = _with_shares([*general, *own, *of_class, *labels])
        if is_unknown_slice(_partition(known)):
            known, by_machine = _without_figures(known), _without_figures(by_machine)
        merged = self._merged(known, by_machine, context, node)
        # labels without effect are reported for the node
        warnings += [text for text in node.warnings if context.node is None or not text.endswith(IGNORED)]
        if merged.tag.kind is AcceleratorKind.UNKNOWN:
            warnings += [
                f"the pod requests {each.name}, a resource with an unknown vendor: its accelerator is unknown; "
                "write an AcceleratorClass with this name under resources, or accelerator in the endpoint list"
                for each in unknown
            ]
        return msgspec.structs.replace(merged, warnings=(*warnings, *merged.warnings))

    def context(self, endpoint: Endpoint) -> EndpointContext:
        """Return pod and node of the endpoint; one of another cluster does not match the pods and nodes of this one."""
        local = not endpoint.cluster or endpoint.cluster == self._options.cluster
        inventory = self._inventory if local else self._remote_inventory
        return context_of(endpoint, inventory, self._options, self._catalogue)

    def placement(self, context: EndpointContext) -> EndpointPlacement:
        """Return the placement templates of the endpoint's cluster.

        The pool comes from the annotation of the pod or from the first GPU.
        """
        if context.inventory is self._remote_inventory:
            return NO_PLACEMENT
        gpus = tensor_fusion_gpus(context)
        label = f"{context.options.tensor_fusion_domain}/gpupool"
        name = context.annotations.get(label) or (gpus[0].metadata.labels.get(label, "") if gpus else "")
        pool = context.inventory.gpu_pools.get(name)
        own, is_local = pool.template if pool else "", {gpu.node for gpu in gpus} == {context.node_name}
        record = EndpointPlacement(own=own, templates=self._templates, is_local=is_local)
        return self._placements.setdefault((own, is_local), record)

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

    def _cluster_warnings(self, context: EndpointContext) -> Iterator[str]:
        is_remote = context.inventory is self._remote_inventory and not self._options.cluster
        if is_remote and (self._inventory.pods or self._inventory.nodes):
            cluster = context.endpoint.cluster
            yield (
                f"the endpoint is in cluster {cluster!r}, and the cluster of the object files is not set: "
                f"their pods and nodes are ignored; if it is the same cluster, write cluster: {cluster}"
            )

    def _merged(self, known: list[Facts], by_machine: list[Facts], context: EndpointContext, node: NodeFacts) -> Merged:
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
        listed = listed_prices(self._prices, draft, product, context, node)
        if not unknown:
            declared, others = filter(is_declaration, known), filterfalse(is_declaration, known)
            known = [*declared, listed, *others, *cost_facts(draft, context)]
        merged = merge([*known, *table])
        tag = merged.tag
        warnings = () if tag.cost.per_hour is not None else (*cost_warnings(context), *listed.warnings)
        if tag.vendor == "nvidia" and tag.compute_capability:
            tag = msgspec.structs.replace(tag, features=tag.features | features_of(tag.compute_capability))
        return Merged(tag, merged.conflicts, warnings)

    def _of_part(self, table: Iterable[Facts], part: Partition) -> list[Facts]:
        """Return the facts of tables for a partition of the device."""
        if part.memory_fraction == 1:
            return list(table)
        products = [(fact, self._catalogue.find(fact.product or "")) for fact in table]
        return [fact if product is None else product.facts(fact.source, part) for fact, product in products]

    def _declared(self, context: EndpointContext) -> Iterator[Facts]:
        """Yield declared facts: of the endpoint list, of overrides, and of a trusted pod."""
        found: list[tuple[AcceleratorDeclaration, str, Rank]] = []
        if context.endpoint.accelerator is not None:
            found.append((context.endpoint.accelerator, ENDPOINT_LIST, Rank.OPERATOR))
        for number, override in enumerate(self._options.overrides, 1):
            if override.fits(context.endpoint, context.node_name):
                found.append((override.accelerator, f"{OVERRIDE}{number}", Rank.OPERATOR))
                break
        if self._options.trust_pod_labels:
            pod = context.pod
            texts = () if pod is None else (pod.metadata.annotations, pod.metadata.labels)
            if name := class_on_pod(*texts, context.endpoint.labels):
                found.append((AcceleratorDeclaration(accelerator_class=name), "pod labels", Rank.POD))
        for declaration, source, rank in found:
            yield from declared_facts(declaration, source, self._inventory.classes, self._catalogue, rank)

    def _facts_of_node(self, context: EndpointContext) -> NodeFacts:
        name = "" if context.node is None else context.node.name
        if (found := self._node_facts.get(name)) is None:
            machines = self._options.instance_types
            found = facts_from_labels(context.node_labels, instance_types=machines, catalogue=self._catalogue)
            if name:
                self._node_facts[name] = found
        return found

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

    def _of_classes(
        self, context: EndpointContext, devices: Sequence[Allocated], facts: Sequence[Facts], *, keys: set[str]
    ) -> Iterator[Facts]:
        """Yield the names of the matching classes, and the facts of the first one unless another one is declared.

        `keys` are those of the resources of the endpoint.
        """
        part = _partition(facts)
        sliced = {f"mig/{part.profile}"} if part.kind is Sharing.MIG and part.profile else set[str]()
        if not keys and sliced:  # MIG strategy single: pods request slices as nvidia.com/gpu
            keys.add("nvidia.com/gpu")
        attributes = tuple((each.driver, each.attributes) for each in devices)
        requests_nothing = context.pod is not None and not any(fact.rank is Rank.OPERATOR for fact in facts)
        evidence = Evidence(
            labels=with_label_aliases(context.node_labels),
            node=context.node_name,
            resources=frozenset(keys | sliced) if keys or sliced or requests_nothing else None,
            pci=pci_of(context.node_labels, attributes),
            devices=attributes,
        )
        inventory = context.inventory
        classes = matching_classes(inventory.classes.values(), evidence, inventory.flavors, inventory.expressions)
        yield Facts(source="", rank=Rank.CLASS, classes=tuple(each.name for each in classes))
        if classes and not any(fact.classes for fact in facts):
            product = next((fact.product for fact in facts if fact.product), "") or ""
            yield class_facts(classes[0], self._catalogue, product=product)


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
        if fact.memory_bytes is not None
        and fact.partition is None
        and (fact.rank in {Rank.CLASS, Rank.LABELS} or fact.source.startswith("AcceleratorClass/"))
        else fact
        for fact in facts
    ]


def _without_figures(facts: Iterable[Facts]) -> list[Facts]:
    """Remove memory, prices and speed of whole devices from the facts of all sources except declarations and claims."""
    return [fact if fact.rank < Rank.ALLOCATOR else fact.without_figures for fact in facts]


_DECLARE = "under accelerator in the endpoint list, or in an override"


_REMEDIES: Mapping[str, str] = {
    "accelerator": f"no known resource, label, claim or class: write an AcceleratorClass, or class {_DECLARE}",
    "model": f"no label, machine type or class names it: write an AcceleratorClass, or class {_DECLARE}",
    "count": f"the pod is not known, or others share its node: write count {_DECLARE}",
    "memory": f"no label, class or row of the catalogue: write memory {_DECLARE}, or capabilities.memoryGB in an "
    "AcceleratorClass",
    "TFLOPS": "no class and no row of the catalogue: write capabilities.performance in an AcceleratorClass, or "
    "fp16TFlops in the file of gpuCatalogue",
    "price": f"no class, variant, node or file of prices: give --prices FILE, or write cost.perHour in an "
    f"AcceleratorClass, or costPerHour {_DECLARE}",
}


class Missing(msgspec.Struct, frozen=True):
    """A fact without a source."""

    fact: str
    """accelerator, model, count, memory, TFLOPS or price."""
    remedy: str


def missing_of(tag: AcceleratorTag) -> tuple[Missing, ...]:
    """Return the missing facts about the accelerators; none for an endpoint without accelerators."""
    unknown = tag.kind is AcceleratorKind.UNKNOWN
    missing = {
        "accelerator": unknown,
        "model": not (unknown or tag.model or tag.product),
        "count": not tag.count,
        "memory": tag.memory_bytes is None,
        "TFLOPS": not tag.tflops(),
        "price": tag.cost_per_hour() is None,
    }
    if tag.kind is AcceleratorKind.CPU:
        return ()
    return tuple(Missing(fact, _REMEDIES[fact]) for fact, is_missing in missing.items() if is_missing)
