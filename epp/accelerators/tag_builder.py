"""Tags endpoints: gathers what every source says of one, and merges it field by field."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from epp.accelerators.catalogue import CATALOGUE, Catalogue
from epp.accelerators.catalogue.instance_types import InstanceType
from epp.accelerators.catalogue.products import features_of
from epp.accelerators.classes.matching import Evidence, matching_classes
from epp.accelerators.classes.pci import pci_of
from epp.accelerators.dra.devices import Allocated, allocated_devices, claims_of, resource_keys
from epp.accelerators.facts import Facts, Merged, Rank, merge
from epp.accelerators.facts.classes import class_facts
from epp.accelerators.facts.declared import AcceleratorOverride, Declared, class_on_pod, declared_facts
from epp.accelerators.facts.dra import dra_facts
from epp.accelerators.facts.instaslice import DrainOrIgnore, PassOrDrain, instaslice_facts
from epp.accelerators.facts.pod import cpu_facts, endpoint_facts, pod_facts
from epp.accelerators.facts.prices import CostUnit, cost_facts
from epp.accelerators.facts.surroundings import Surroundings, surroundings_of
from epp.accelerators.facts.tensor_fusion import DOMAIN, tensor_fusion_facts, tensor_fusion_gpus
from epp.accelerators.inventory import Inventory
from epp.accelerators.labels import NodeFacts, facts_from_labels, spot_from_labels, with_label_aliases
from epp.accelerators.objects.ome import AcceleratorClass
from epp.accelerators.resources import asked_of, resource_key
from epp.framework.accelerators import AcceleratorDeclaration, Partition, Sharing
from epp.framework.endpoint import Endpoint
from epp.framework.plugin import Parameters

_VENDOR_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


class TaggerOptions(Parameters, frozen=True):
    """Whom to believe, and what to make of what is missing."""

    trust_pod_labels: bool = False
    """Let pods name their class, and let labels of a pod stand for those of a node that is not known."""
    on_missing_claim: PassOrDrain = "Pass"
    """What to do with an endpoint whose pod asks for a slice that no claim tells of."""
    on_node_not_ready: DrainOrIgnore = "Drain"
    """What to do with slices on a node whose slicer is not ready."""
    on_unhealthy_device: DrainOrIgnore = "Drain"
    """What to do with an endpoint that has a device which its node calls unhealthy."""
    on_pending_gpu: PassOrDrain = "Drain"
    """What to do with an endpoint that has a GPU which TensorFusion has not got running yet. To send requests there,
    `allowPending` of `accelerator-availability-filter` has to be set as well, where that is configured."""
    cost_unit: CostUnit = "cents"
    """What prices of the variant autoscaler count, per hour."""
    instance_types: Mapping[str, InstanceType] = msgspec.field(default_factory=dict)
    """Accelerators of machine types, by the type's name; they go before the built-in table."""
    overrides: tuple[AcceleratorOverride, ...] = ()
    """What endpoints have, whatever sources say; the first that fits counts."""
    tensor_fusion_domain: str = DOMAIN
    """Domain of TensorFusion's annotations on pods."""
    cluster: str = ""
    """Name of the cluster that the objects are from; endpoints of other clusters have no pods and nodes here."""


class TagBuilder:
    """Tags endpoints by one inventory; build another one for another inventory."""

    def __init__(
        self, inventory: Inventory, options: TaggerOptions | None = None, catalogue: Catalogue = CATALOGUE
    ) -> None:
        self._options = options or TaggerOptions()
        self._catalogue = catalogue
        self._inventory = inventory
        self._elsewhere = Inventory(
            classes=inventory.classes, flavors=inventory.flavors, expressions=inventory.expressions
        )
        self._resource_names = frozenset(
            [resource.name for each in inventory.classes.values() for resource in each.spec.resources]
            + [each.extended_resource_name for each in inventory.device_classes.values() if each.extended_resource_name]
        )
        self._node_facts: dict[str, NodeFacts] = {}

    def build(self, endpoint: Endpoint) -> Merged:
        """Return the endpoint's tag, with what sources contradict each other in or cannot be understood in."""
        options = self._options
        local = not endpoint.cluster or endpoint.cluster == options.cluster
        inventory = self._inventory if local else self._elsewhere
        around = surroundings_of(endpoint, inventory, trust_pod_labels=options.trust_pod_labels)
        declared = self._declared(around)
        warnings = (*declared.warnings, *(() if local else self._foreign(endpoint)))
        asked = () if around.pod is None else asked_of(around.pod, self._resource_names)
        devices = allocated_devices(around, inventory)
        gpus = tensor_fusion_gpus(around, inventory, options.tensor_fusion_domain)
        allocated = [
            *dra_facts(around, inventory, devices, self._catalogue, on_unhealthy=options.on_unhealthy_device),
            *instaslice_facts(
                around,
                inventory,
                asked,
                on_missing_claim=options.on_missing_claim,
                on_node_not_ready=options.on_node_not_ready,
            ),
            *tensor_fusion_facts(
                around,
                gpus,
                self._catalogue,
                annotation_domain=options.tensor_fusion_domain,
                on_pending=options.on_pending_gpu,
            ),
        ]
        place = endpoint_facts(around, inventory, options.cluster)
        if around.pod is not None and not (
            declared.facts or asked or allocated or self._may_have_more(around, inventory)
        ):
            return merge([cpu_facts(around.pod), place, *_spot(around.node_labels)])
        node = self._facts_of_node(around)
        labels, by_machine = _split(node.facts)
        own = [*declared.facts, *allocated, *pod_facts(around, asked, node, inventory)]
        if self._contradicted(own, labels):
            labels, by_machine = _spot(around.node_labels), []
        keys = {resource_key(each.name) for each in asked} | resource_keys(devices, inventory)
        keys |= {_VENDOR_RESOURCES.get(gpu.status.vendor.lower(), "nvidia.com/gpu") for gpu in gpus}
        classes = self._classes(around, inventory, devices, [*own, *labels], keys=keys)
        of_class = [] if declared.classes or not classes else [self._of_class(classes[0], [*own, *labels])]
        names = dict.fromkeys((*declared.classes, *(each.name for each in classes)))
        known = _shared_out([place, *own, *of_class, *labels])
        merged = self._finished(known, by_machine, around, inventory, classes=tuple(names))
        return msgspec.structs.replace(merged, warnings=(*warnings, *node.warnings))

    def _foreign(self, endpoint: Endpoint) -> Iterator[str]:
        """Say so where nobody named the cluster of the objects, so that no endpoint that names one can be in it."""
        if not self._options.cluster and (self._inventory.pods or self._inventory.nodes):
            yield (
                f"the endpoint is in cluster {endpoint.cluster!r}, and nobody says which one the objects are from: "
                f"their pods and nodes are left out; if it is that one, set cluster: {endpoint.cluster}"
            )

    def _may_have_more(self, around: Surroundings, inventory: Inventory) -> bool:
        """Return whether the pod has something that may yet bring it an accelerator."""
        annotations = {} if around.pod is None else around.pod.metadata.annotations
        domain = f"{self._options.tensor_fusion_domain}/"
        return bool(claims_of(around, inventory)) or any(key.startswith(domain) for key in annotations)

    def _finished(
        self,
        known: list[Facts],
        by_machine: list[Facts],
        around: Surroundings,
        inventory: Inventory,
        *,
        classes: tuple[str, ...],
    ) -> Merged:
        """Return the tag, with prices and what the catalogue says of the product that it turned out to be."""
        draft = merge(known).tag
        whole = None if draft.memory_bytes is None else int(draft.memory_bytes / (draft.partition.memory_fraction or 1))
        texts = (text for text in (draft.product, draft.model) if text)
        product = next((found for text in texts if (found := self._catalogue.find(text, whole)) is not None), None)
        table = by_machine if product is None else [product.facts(partition=draft.partition)]
        draft = merge([*known, *table]).tag
        known += cost_facts(draft, around, inventory, self._catalogue, self._options.cost_unit)
        merged = merge([*known, *table], classes)
        tag = merged.tag
        if tag.vendor == "nvidia" and tag.compute_capability:
            tag = msgspec.structs.replace(tag, features=tag.features | features_of(tag.compute_capability))
        return Merged(tag, merged.conflicts)

    def _declared(self, around: Surroundings) -> Declared:
        """Return what operators say: on the endpoint first, then in overrides; then the pod, if it is trusted."""
        found: list[tuple[AcceleratorDeclaration, str, Rank]] = []
        if around.endpoint.accelerator is not None:
            found.append((around.endpoint.accelerator, "endpoint list", Rank.OPERATOR))
        for number, override in enumerate(self._options.overrides):
            if override.fits(around.endpoint, around.node_name):
                found.append((override.accelerator, f"override {number + 1}", Rank.OPERATOR))
                break
        if self._options.trust_pod_labels:
            pod = around.pod
            texts = () if pod is None else (pod.metadata.annotations, pod.metadata.labels)
            if name := class_on_pod(*texts, around.endpoint.labels):
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

    def _facts_of_node(self, around: Surroundings) -> NodeFacts:
        """Return what labels say; for nodes, of which many endpoints ask, once."""
        if around.node is None:
            return self._read_labels(around.node_labels)
        found = self._node_facts.get(around.node.name)
        if found is None:
            found = self._node_facts[around.node.name] = self._read_labels(around.node_labels)
        return found

    def _read_labels(self, labels: Mapping[str, str]) -> NodeFacts:
        return facts_from_labels(labels, instance_types=self._options.instance_types, catalogue=self._catalogue)

    def _contradicted(self, own: Sequence[Facts], labels: Sequence[Facts]) -> bool:
        """Return whether the endpoint has another product than labels say: they describe one of several then."""
        said = [fact.product for fact in labels if fact.product]
        given = [fact.product or fact.model for fact in own if fact.product or fact.model]
        if not said or not given:
            return False
        theirs, ours = self._catalogue.find(said[0]), self._catalogue.find(given[0] or "")
        return theirs is not None and ours is not None and theirs.model != ours.model

    def _classes(
        self,
        around: Surroundings,
        inventory: Inventory,
        devices: Sequence[Allocated],
        facts: Sequence[Facts],
        *,
        keys: set[str],
    ) -> tuple[AcceleratorClass, ...]:
        """Return the classes that the endpoint is of; `keys` are those of the resources that it has."""
        part = _partition(facts)
        sliced = {f"mig/{part.profile}"} if part.kind is Sharing.MIG and part.profile else set[str]()
        if not keys and sliced:  # as all of them are on a node where all GPUs are cut alike
            keys.add("nvidia.com/gpu")
        attributes = tuple((each.driver, each.attributes) for each in devices)
        evidence = Evidence(
            labels=with_label_aliases(around.node_labels),
            node=around.node_name,
            resources=frozenset(keys | sliced) if keys or sliced or self._asks_nothing(around, facts) else None,
            pci=pci_of(around.node_labels, attributes),
            devices=attributes,
        )
        return matching_classes(inventory.classes.values(), evidence, inventory.flavors, inventory.expressions)

    def _asks_nothing(self, around: Surroundings, facts: Sequence[Facts]) -> bool:
        """Return whether it is known that there is nothing that a class could be asked for by."""
        return around.pod is not None and not any(fact.rank is Rank.OPERATOR for fact in facts)

    def _of_class(self, each: AcceleratorClass, facts: Sequence[Facts]) -> Facts:
        product = next((fact.product for fact in facts if fact.product), "") or ""
        return class_facts(each, self._catalogue, product=product)


def _split(facts: Iterable[Facts]) -> tuple[list[Facts], list[Facts]]:
    """Return what labels say, and what tables say of it."""
    found = list(facts)
    return [f for f in found if f.rank < Rank.CATALOGUE], [f for f in found if f.rank >= Rank.CATALOGUE]


def _spot(labels: Mapping[str, str]) -> list[Facts]:
    spot = spot_from_labels(labels)
    return [] if spot is None else [Facts(source="labels", rank=Rank.LABELS, spot=spot)]


def _partition(facts: Iterable[Facts]) -> Partition:
    """Return the part that counts."""
    parts = [(fact.rank, fact.partition) for fact in facts if fact.partition is not None]
    return min(parts, key=lambda part: part[0], default=(Rank.SELF, Partition()))[1]


def _shared_out(facts: list[Facts]) -> list[Facts]:
    """Return the facts with the memory of whole devices, where classes and labels say it, cut to the endpoint's part.

    Sources that tell of the part itself, or were given it, say the part's memory already.
    """
    part = _partition(facts)
    if part.memory_fraction == 1.0:
        return facts
    return [
        msgspec.structs.replace(fact, memory_bytes=int(fact.memory_bytes * part.memory_fraction))
        if fact.memory_bytes is not None and fact.partition is None and _of_whole(fact)
        else fact
        for fact in facts
    ]


def _of_whole(fact: Facts) -> bool:
    return fact.rank in {Rank.CLASS, Rank.LABELS} or fact.source.startswith("AcceleratorClass/")
