"""Plain data of cluster objects into typed ones; what is wrong with one of them costs that one alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from epp.accelerators.objects.base import Object, convert
from epp.accelerators.objects.core import Node, Pod
from epp.accelerators.objects.costs import VariantAutoscaling, read_unit_costs
from epp.accelerators.objects.dra import (
    read_device_class,
    read_device_taint_rule,
    read_resource_claim,
    read_resource_slice,
)
from epp.accelerators.objects.instaslice import Instaslice, read_allocation_claim, read_node_accelerator
from epp.accelerators.objects.kueue import ResourceFlavor
from epp.accelerators.objects.ome import AcceleratorClass
from epp.accelerators.objects.tensor_fusion import Gpu, GpuNode, GpuResourceQuota, SchedulingConfigTemplate

T = TypeVar("T", bound=Object)

_Reader = Callable[[object], Object | None]


def _plain(cls: type[Object]) -> _Reader:
    return lambda document: convert(document, cls)


class _Kind(msgspec.Struct, frozen=True):
    """Versions of an API that are understood, and what reads them."""

    versions: frozenset[str]
    read: _Reader
    default_namespace: bool = False
    """Whether an object that names no namespace is in `default`, not in none."""


_V1 = frozenset({"v1"})
_V1ALPHA1 = frozenset({"v1alpha1"})
_DRA = frozenset({"v1", "v1beta2", "v1beta1"})
_KINDS: Mapping[tuple[str, str], _Kind] = {
    ("", "Node"): _Kind(_V1, _plain(Node)),
    ("", "Pod"): _Kind(_V1, _plain(Pod), default_namespace=True),
    ("", "ConfigMap"): _Kind(_V1, read_unit_costs, default_namespace=True),
    ("ome.io", "AcceleratorClass"): _Kind(frozenset({"v1beta1"}), _plain(AcceleratorClass)),
    ("inference.redhat.com", "Instaslice"): _Kind(_V1ALPHA1, _plain(Instaslice)),
    ("inference.redhat.com", "NodeAccelerator"): _Kind(_V1ALPHA1, read_node_accelerator),
    ("inference.redhat.com", "AllocationClaim"): _Kind(_V1ALPHA1, read_allocation_claim),
    ("tensor-fusion.ai", "GPU"): _Kind(_V1, _plain(Gpu)),
    ("tensor-fusion.ai", "GPUNode"): _Kind(_V1, _plain(GpuNode)),
    ("tensor-fusion.ai", "GPUResourceQuota"): _Kind(_V1, _plain(GpuResourceQuota), default_namespace=True),
    ("tensor-fusion.ai", "SchedulingConfigTemplate"): _Kind(_V1, _plain(SchedulingConfigTemplate)),
    ("resource.k8s.io", "ResourceSlice"): _Kind(_DRA, read_resource_slice),
    ("resource.k8s.io", "ResourceClaim"): _Kind(_DRA, read_resource_claim, default_namespace=True),
    ("resource.k8s.io", "DeviceClass"): _Kind(_DRA, read_device_class),
    ("resource.k8s.io", "DeviceTaintRule"): _Kind(_DRA | {"v1alpha3"}, read_device_taint_rule),
    ("kueue.x-k8s.io", "ResourceFlavor"): _Kind(frozenset({"v1beta1", "v1beta2"}), _plain(ResourceFlavor)),
    ("llmd.ai", "VariantAutoscaling"): _Kind(_V1ALPHA1, _plain(VariantAutoscaling), default_namespace=True),
}
_GROUP_ALIASES: Mapping[str, str] = {"ome.ai": "ome.io"}
"""Spellings of groups that were published and that no cluster has."""
_NESTING_LIMIT = 4
"""How deep lists of lists are followed."""


class Decoded(msgspec.Struct, frozen=True):
    """Objects that were understood, and sentences about the others."""

    objects: tuple[Object, ...] = ()
    problems: tuple[str, ...] = ()
    skipped: int = 0
    """How many objects were left out because something is wrong with them."""

    def of(self, cls: type[T]) -> tuple[T, ...]:
        """Return the objects of one kind, in the order read."""
        return tuple(each for each in self.objects if isinstance(each, cls))

    def with_more(self, other: "Decoded") -> "Decoded":
        """Return both together."""
        return Decoded(self.objects + other.objects, self.problems + other.problems, self.skipped + other.skipped)


def decode_documents(documents: Iterable[object], origin: str) -> Decoded:
    """Return the objects in the documents, lists unpacked. Kinds that are not used here are passed over in silence.

    Every problem begins with `origin`, the file or API that the documents are from.
    """
    objects: list[Object] = []
    problems: list[str] = []
    skipped = 0
    for document in _unpacked(documents):
        found, problem = _decoded(document)
        if found is not None:
            objects.append(found)
        elif problem:
            skipped += 1
        if problem:
            problems.append(f"{origin}: {problem}")
    return Decoded(tuple(objects), tuple(problems), skipped)


def _unpacked(documents: Iterable[object], depth: int = 0) -> Iterator[object]:
    """Yield the documents, those in lists one by one; empty documents are none."""
    for document in documents:
        items = document.get("items") if isinstance(document, Mapping) else None
        if isinstance(document, Mapping) and isinstance(items, list) and depth < _NESTING_LIMIT:
            yield from _unpacked([_with_kind(item, document) for item in items], depth + 1)
        elif document is not None:
            yield document


def _with_kind(item: object, of_list: Mapping[str, object]) -> object:
    """Return the item of a PodList with the kind and version that the list says for all of them."""
    kind = of_list.get("kind")
    if not isinstance(item, Mapping) or not isinstance(kind, str) or kind in {"List", ""}:
        return item
    return {"apiVersion": of_list.get("apiVersion"), "kind": kind.removesuffix("List"), **item}


def _decoded(document: object) -> tuple[Object | None, str]:
    """Return the object or nothing, and what there is to say."""
    if not isinstance(document, Mapping):
        return None, f"a document is skipped: {document!r:.60} is no object"
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or not kind or not version:
        keys = ", ".join(sorted(map(str, document)))
        return None, f"a document is skipped: it needs the keys apiVersion and kind, it has {keys or 'none'}"
    group, _, level = version.rpartition("/")
    asked = group
    group = _GROUP_ALIASES.get(group, group)
    known = _KINDS.get((group, kind))
    if known is None:
        return None, ""
    name = f"{kind} {_name(document)}"
    if level not in known.versions:
        understood = " and ".join(sorted(known.versions))
        return None, f"{name} is skipped: of {group or 'the core API'} {understood} are understood, not {level!r}"
    try:
        found = known.read(document)
    except ValueError as error:  # what msgspec raises is one too
        return None, f"{name} is skipped: {error}"
    if found is not None and known.default_namespace and not found.metadata.namespace:
        found = msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, namespace="default"))
    return found, "" if group == asked else f"{name}: the API group is {group}, not {asked}; it is read as if it were"


def _name(document: Mapping[str, object]) -> str:
    """Return namespace/name for messages, as far as there is any."""
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return "without a name"
    space, name = metadata.get("namespace"), metadata.get("name", "without a name")
    return f"{space}/{name}" if space else str(name)
