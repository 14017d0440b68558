# SPDX-License-Identifier: Apache-2.0
"""Decoding of cluster objects from plain data, and detection of their unknown fields."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.resources import files
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import yaml

from epp.framework.input_errors import with_step
from epp.framework.messages import printable
from epp.framework.suggestions import hint_at, nearest
from epp.kube.objects import (
    core,
    dra,
    inference,
    instaslice,
    memory_quotas,
    ocm,
    ome,
    ome_services,
    placement,
    tensor_fusion,
)
from epp.kube.objects.base import Object, ObjectKey, convert
from epp.kube.objects.inference import GROUP, LEGACY_GROUP, POOL_GROUP
from epp.kube.objects.limits import sanitized
from epp.kube.objects.ocm import DYNAMIC_SCORING, OCM
from epp.kube.objects.ome_services import OME
from epp.kube.resources import BY_KIND, CLUSTERS, MEMORY_QUOTAS, SCORERS

_MOST = 20
"""Maximum number of unknown fields that are reported for an object."""
_MOST_CHARACTERS = 200
_OTHERS = "*"
_TABLE = "data/fields.yaml"

Fields: TypeAlias = Mapping[str, "Fields | None"]
"""Known fields with their own fields; None for a field with any value."""

_METADATA: Fields = dict.fromkeys(
    (
        *("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "selfLink", "clusterName"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations"),
        *("ownerReferences", "finalizers", "managedFields"),
    )
)


@cache
def known_fields() -> Mapping[str, Fields]:
    """Return the fields of objects by `group/kind`."""
    specs = yaml.safe_load((files("epp.kube.objects") / _TABLE).read_text("utf-8"))
    root: dict[str, Fields | None] = {"apiVersion": None, "kind": None, "metadata": _METADATA, "status": None}
    return {kind: {**root, "spec": fields} for kind, fields in specs.items()}


def unknown_fields(document: Mapping[str, object], kind: tuple[str, str]) -> tuple[str, ...]:
    """Return a sentence for each unknown field, at most 20: `spec.cost.hourly is unknown: did you mean 'perHour'?`.

    Only kinds in `data/fields.yaml` are checked. All entries of a list have the same path.
    """
    fields = known_fields().get("/".join(kind))
    return () if fields is None else tuple(dict.fromkeys(islice(unknown_within(document, fields), _MOST)))


def unknown_within(value: object, fields: Fields, place: str = "") -> Iterator[str]:
    """Yield a sentence for each field that is not among the known ones, with its path."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from unknown_within(each, fields, f"{place}[]")
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        name, others = str(key), fields.get(_OTHERS)
        known = fields.get(name, others)
        if known is not None:
            yield from unknown_within(inner, known, with_step(place, name))
        if name in fields or others is not None:
            continue
        names = fields.keys() - {_OTHERS}
        is_open = _OTHERS in fields
        if not is_open or nearest(name, names) is not None:
            yield printable(f"{with_step(place, name)} is unknown: {hint_at(name, names)}", _MOST_CHARACTERS)


Kinds: TypeAlias = frozenset[tuple[str, str]]

_Reader = Callable[[object], Object | None]
"""Returns the object in a document, None for an irrelevant one; raises ValueError with field, value and remedy."""


def _plain(cls: type[Object]) -> _Reader:
    return partial(convert, cls=cls)


_READERS: Mapping[tuple[str, str], _Reader] = {
    ("", "Node"): _plain(core.Node),
    ("", "Pod"): core.read_pod,
    ("", "ConfigMap"): core.read_config_map,
    ("", "Namespace"): _plain(memory_quotas.Namespace),
    ("", "ResourceQuota"): _plain(memory_quotas.ResourceQuota),
    (OME, "AcceleratorClass"): ome.read_accelerator_class,
    (OME, "InferenceService"): ome_services.read_inference_service,
    (OME, "ServingRuntime"): partial(ome_services.read_runtime, cls=ome_services.ServingRuntime),
    (OME, "ClusterServingRuntime"): partial(ome_services.read_runtime, cls=ome_services.ClusterServingRuntime),
    ("inference.redhat.com", "Instaslice"): _plain(instaslice.Instaslice),
    ("inference.redhat.com", "NodeAccelerator"): instaslice.read_node_accelerator,
    ("inference.redhat.com", "AllocationClaim"): instaslice.read_allocation_claim,
    ("tensor-fusion.ai", "GPU"): _plain(tensor_fusion.Gpu),
    ("tensor-fusion.ai", "GPUNode"): _plain(tensor_fusion.GpuNode),
    ("tensor-fusion.ai", "GPUPool"): _plain(tensor_fusion.GpuPool),
    ("tensor-fusion.ai", "GPUResourceQuota"): _plain(tensor_fusion.GpuResourceQuota),
    ("tensor-fusion.ai", "SchedulingConfigTemplate"): _plain(tensor_fusion.SchedulingConfigTemplate),
    ("resource.k8s.io", "ResourceSlice"): dra.read_resource_slice,
    ("resource.k8s.io", "ResourceClaim"): _plain(dra.ResourceClaim),
    ("resource.k8s.io", "DeviceClass"): _plain(dra.DeviceClass),
    ("resource.k8s.io", "DeviceTaintRule"): dra.read_device_taint_rule,
    ("kueue.x-k8s.io", "ResourceFlavor"): _plain(ome.ResourceFlavor),
    ("kueue.x-k8s.io", "ClusterQueue"): _plain(memory_quotas.ClusterQueue),
    ("kueue.x-k8s.io", "LocalQueue"): _plain(memory_quotas.LocalQueue),
    ("kueue.x-k8s.io", "AdmissionCheck"): _plain(ocm.AdmissionCheck),
    ("kueue.x-k8s.io", "MultiKueueCluster"): _plain(ocm.MultiKueueCluster),
    ("kueue.x-k8s.io", "MultiKueueConfig"): _plain(ocm.MultiKueueConfig),
    (OCM, "AddOnPlacementScore"): ocm.read_score,
    (OCM, "ManagedCluster"): ocm.read_managed_cluster,
    (OCM, "ManagedClusterSet"): _plain(ocm.ManagedClusterSet),
    (OCM, "ManagedClusterSetBinding"): _plain(ocm.ManagedClusterSetBinding),
    (OCM, "Placement"): placement.read_placement,
    (OCM, "PlacementDecision"): ocm.read_placement_decision,
    (DYNAMIC_SCORING, "DynamicScorer"): ocm.read_dynamic_scorer,
    (DYNAMIC_SCORING, "DynamicScoringConfig"): _plain(ocm.DynamicScoringConfig),
    (LEGACY_GROUP, "InferencePoolImport"): _plain(inference.InferencePoolImport),
    ("llmd.ai", "VariantAutoscaling"): _plain(core.VariantAutoscaling),
    (POOL_GROUP, "InferencePool"): inference.read_inference_pool,
    (GROUP, "InferenceObjective"): inference.read_inference_objective,
    (GROUP, "InferenceModelRewrite"): inference.read_inference_model_rewrite,
    (LEGACY_GROUP, "InferenceObjective"): inference.read_inference_objective,
    (LEGACY_GROUP, "InferenceModelRewrite"): inference.read_inference_model_rewrite,
}
_FAULTS: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "AcceleratorClass": ome.faults_of,
    "InferenceModelRewrite": inference.rewrite_faults,
    **dict.fromkeys(("InferenceObjective", "InferencePool", "InferenceService"), ome_services.selection_faults),
    **dict.fromkeys(("ServingRuntime", "ClusterServingRuntime"), ome_services.selection_faults),
}
"""By kind, what yields field, value and remedy of each invalid value: a version with one replaces no sound version."""
_WITHOUT_DEFAULT_NAMESPACE = frozenset({"AddOnPlacementScore", "AllocationClaim", "Instaslice", "NodeAccelerator"})
_GROUP_ALIASES: Mapping[tuple[str, str], str] = {
    **{("ome.ai", kind): OME for group, kind in _READERS if group == OME},
    (POOL_GROUP, "InferenceObjective"): GROUP,
    (POOL_GROUP, "InferenceModelRewrite"): GROUP,
}
"""Real groups of kinds, by wrong groups in published examples."""
_PROPOSED_SERVICE = ("serving.kserve.io", "InferenceService")
"""Group in the proposal of OME; a service with a selector of accelerators belongs to OME."""
ALL_KINDS: Kinds = frozenset(_READERS)
CLUSTER_KINDS: Kinds = frozenset(each.key for each in CLUSTERS)
"""Kinds of Open Cluster Management, those of multi-cluster queueing, and imported pools."""
MEMORY_QUOTA_KINDS: Kinds = frozenset(each.key for each in MEMORY_QUOTAS)
SCORER_KINDS: Kinds = frozenset(each.key for each in SCORERS)
KNOWN_GROUPS = frozenset({OCM, OME, "inference.redhat.com", "kueue.x-k8s.io", "resource.k8s.io", "tensor-fusion.ai"})
"""Groups whose unsupported kinds are reported, because operators may expect an effect."""
_NESTING_LIMIT = 4


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an object, from one document."""

    key: ObjectKey | None = None
    """None if the document has no readable identity."""
    title: str
    """Kind and name; the place of a document without these."""
    object: Object | None = None
    """None if the document is invalid."""
    reason: str = ""
    """Reason for the rejection: field, value and remedy."""
    note: str = ""


def decode_object(document: Mapping[str, object]) -> Object | None:
    """Return the object in a document of a known kind, None for an irrelevant one; raises ValueError with a remedy."""
    version = _version(document, "the object", ALL_KINDS)
    if version is None:
        return None
    if version.reason:
        raise ValueError(version.reason)
    return version.object


def versions_in(documents: Iterable[object], kinds: Kinds = ALL_KINDS) -> Iterator[Version]:
    """Yield a version for each document, or list item, of these kinds."""
    for index, document in enumerate(documents, 1):
        for place, item in _unpacked(document, f"document {index}"):
            if (version := _version(item, place, kinds)) is not None:
                yield version


def kinds_without_use(documents: Iterable[object]) -> Mapping[tuple[str, str], int]:
    """Return the number of objects by group and kind, for unsupported kinds of known groups."""
    found: Counter[tuple[str, str]] = Counter()
    for document in documents:
        for _, item in _unpacked(document, ""):
            kind = _kind(item) if isinstance(item, Mapping) else None
            if kind is not None and kind[0] in KNOWN_GROUPS and kind not in _READERS:
                found[kind] += 1
    return dict(found)


def _unpacked(document: object, place: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield the document, or the items of a list, each with its place; skip empty documents."""
    items = document.get("items") if isinstance(document, Mapping) else None
    if isinstance(document, Mapping) and isinstance(items, list) and depth < _NESTING_LIMIT:
        for index, item in enumerate(items):
            yield from _unpacked(_with_kind(item, document), f"{place}, items[{index}]", depth + 1)
    elif document is not None:
        yield place, document


def _with_kind(item: object, of_list: Mapping[str, object]) -> object:
    kind = of_list.get("kind")
    if not isinstance(item, Mapping) or not isinstance(kind, str) or kind in {"List", ""}:
        return item
    return {"apiVersion": of_list.get("apiVersion"), "kind": kind.removesuffix("List"), **item}


def _version(document: object, place: str, kinds: Kinds) -> Version | None:
    if not isinstance(document, Mapping):
        reason = f"it is {document!r:.60}: write an object with apiVersion, kind and metadata"
        return Version(title=place, reason=reason)
    kind = _kind(document)
    if kind is None:
        keys = ", ".join(sorted(map(str, document)))
        reason = f"it needs apiVersion and kind, both strings; its keys are {keys}" if keys else "it is empty"
        return Version(title=place, reason=reason)
    if kind not in _READERS or kind not in kinds:
        return _broken_list(document, kind, place, kinds)
    title = f"{kind[1]} {_name(document)}"
    group, _, level = str(document["apiVersion"]).rpartition("/")
    try:
        found = _read(document, kind, level)
    except ValueError as error:
        return Version(key=_key(document, kind), title=title, reason=str(error))
    note = "" if group == kind[0] else f"is read as group {kind[0]}: write {kind[0]} instead of {group}"
    return None if found is None else Version(key=found.key, title=title, object=found, note=note)


def _read(document: Mapping[str, object], kind: tuple[str, str], level: str) -> Object | None:
    """Return the object; None for an irrelevant one, such as a ConfigMap with another name. Raises ValueError."""
    versions = BY_KIND[kind].versions
    if level not in versions:
        api = str(document["apiVersion"])
        choices = " or ".join(api.removesuffix(level) + each for each in sorted(versions))
        raise ValueError(f"apiVersion is {api!r}: write {choices}")
    written = _READERS[kind](document)
    if written is None:
        return None
    found, issues = sanitized(written)
    metadata = found.metadata
    if not metadata.namespace and _has_default_namespace(kind):
        metadata = msgspec.structs.replace(metadata, namespace="default")
    faults = _FAULTS[kind[1]](found) if kind[1] in _FAULTS else ()
    return msgspec.structs.replace(
        found,
        metadata=metadata,
        key=ObjectKey(*kind, metadata.namespace, metadata.name),
        unknown_fields=unknown_fields(document, kind),
        issues=issues,
        invalid="; ".join(faults),
    )


def _has_default_namespace(kind: tuple[str, str]) -> bool:
    return kind in _READERS and BY_KIND[kind].namespaced and kind[1] not in _WITHOUT_DEFAULT_NAMESPACE


def _broken_list(document: Mapping[str, object], kind: tuple[str, str], place: str, kinds: Kinds) -> Version | None:
    """Return the rejection of a list whose items are not a list; None for any other document."""
    group, name = kind
    of = name.removesuffix("List")
    is_list = kind == ("", "List") or (of != name and (group, of) in kinds)
    if document.get("items") is None or not is_list:
        return None
    return Version(title=place, reason=f"items is {document['items']!r:.60}: write a list")


def _kind(document: Mapping[str, object]) -> tuple[str, str] | None:
    """Return group and kind; None if one of them is unreadable."""
    api, kind, spec = document.get("apiVersion"), document.get("kind"), document.get("spec")
    if not isinstance(api, str) or not api or not isinstance(kind, str) or not kind:
        return None
    written = api.rpartition("/")[0]
    group = _GROUP_ALIASES.get((written, kind.removesuffix("List")), written)
    if (group, kind) == _PROPOSED_SERVICE and isinstance(spec, Mapping) and "acceleratorSelector" in spec:
        group = OME
    return group, kind


def _key(document: Mapping[str, object], kind: tuple[str, str]) -> ObjectKey | None:
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    name, namespace = metadata.get("name"), metadata.get("namespace") or ""
    if not isinstance(name, str) or not name or not isinstance(namespace, str):
        return None
    if not namespace and _has_default_namespace(kind):
        namespace = "default"
    return ObjectKey(*kind, namespace, name)


def _name(document: Mapping[str, object]) -> str:
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return "without a name"
    space, name = metadata.get("namespace"), metadata.get("name", "without a name")
    return f"{space}/{name}" if space else str(name)
