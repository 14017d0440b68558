# SPDX-License-Identifier: Apache-2.0
"""Bounds and preferences for accelerators by model, objective and pool, from the objects of a cluster or of files."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType

import msgspec

from epp.framework.accelerators.selection import ANY, Selection, combined
from epp.framework.plugin_status import IgnoredValue
from epp.kube.objects.base import Object
from epp.kube.objects.decode import Kinds
from epp.kube.objects.files.last_good import FileObjects
from epp.kube.objects.inference import POLICY_KINDS, POOL_GROUP, InferenceObjective, InferencePool
from epp.kube.objects.ome import AcceleratorClass
from epp.kube.objects.ome_selection import THRESHOLD, read_annotations
from epp.kube.objects.ome_services import (
    OME,
    SERVICE_KINDS,
    InferenceService,
    Runtime,
    ServingRuntime,
    class_faults,
    classes_named,
    selection_faults,
)

POOL = (POOL_GROUP, "InferencePool")
OBJECTIVES: Kinds = frozenset(kind for kind in POLICY_KINDS if kind[1] == "InferenceObjective")
KINDS: Kinds = SERVICE_KINDS | OBJECTIVES | {POOL, (OME, "AcceleratorClass")}
"""Group and kind of all objects that bound the accelerators of requests, and of the classes that they name."""
_MOST_IGNORED = 100


class ServiceSelections(msgspec.Struct, frozen=True):
    """Bounds of one InferenceService, its runtime's among them."""

    general: Selection = ANY
    prefill: Selection = ANY
    """Of its engine, where it has a decoder besides."""
    decode: Selection = ANY


class Objectives(msgspec.Struct, frozen=True):
    """All bounds of objects at one moment."""

    services: Mapping[str, ServiceSelections] = MappingProxyType({})
    """By `namespace/name`."""
    by_model: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Services by names under which requests may ask for their model: that of the base model, or their own."""
    by_label: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Services by their name, as pods have it in a label."""
    by_objective: Mapping[str, Selection] = MappingProxyType({})
    pool: Selection = ANY
    """Caps of the pool; the stricter ones of several pools."""
    ignored: tuple[IgnoredValue, ...] = ()
    """Values that are not in effect, of objects that are; at most 100."""
    classes: tuple[str, ...] = ()
    """Accelerator classes that services and runtimes name."""

    @property
    def is_empty(self) -> bool:
        """Whether no object says anything about any request."""
        return not (self.services or self.by_objective) and self.pool == ANY

    def services_of(self, models: Iterable[str], labels: frozenset[str]) -> tuple[str, ...]:
        """Return the services that a request is for, by its model, or else the only one whose pods are endpoints.

        Of several services with one model, those count whose pods are among the endpoints, if there are any.
        """
        found = next((ids for model in models if (ids := self.by_model.get(model))), ())
        own = tuple(each for label in labels for each in self.by_label.get(label, ()))
        if not found:
            return own if len(labels) == 1 else ()
        return tuple(each for each in found if each in own) or found


def objectives_of(files: Iterable[FileObjects], pool_name: str = "") -> Objectives:
    """Return what the objects say; where `pool_name` is given, other pools are left out."""
    files = tuple(files)
    objects = [each.object for file in files for each in file.held if not each.object.metadata.is_terminating]
    services = {each.id: each for each in objects if isinstance(each, InferenceService)}
    runtimes = {(type(each), each.id): each for each in objects if isinstance(each, Runtime)}
    by_model: dict[str, list[str]] = {}
    by_label: dict[str, list[str]] = {}
    for name, service in sorted(services.items()):
        by_label.setdefault(service.name, []).append(name)
        for model in dict.fromkeys((service.model, service.name, name)):
            if model:
                by_model.setdefault(model, []).append(name)
    pool = ANY
    for each in objects:
        if isinstance(each, InferencePool) and pool_name in ("", each.name):
            pool = combined(pool, read_annotations(each.metadata.annotations, only=(THRESHOLD,)).selection)
    return Objectives(
        services={name: _selections(service, runtimes) for name, service in services.items()},
        by_model={model: tuple(names) for model, names in by_model.items()},
        by_label={label: tuple(names) for label, names in by_label.items()},
        by_objective={
            each.name: found
            for each in objects
            if isinstance(each, InferenceObjective)
            and (found := read_annotations(each.metadata.annotations).selection) != ANY
        },
        pool=pool,
        ignored=ignored_values(files),
        classes=tuple(dict.fromkeys(name for each in objects for name in classes_named(each))),
    )


def ignored_values(files: Iterable[FileObjects]) -> tuple[IgnoredValue, ...]:
    """Return values in objects of these kinds that have no effect, at most 100."""
    held = [(file.file, each) for file in files for each in file.held]
    objects = [each.object for _, each in held]
    classes = frozenset(each.name.lower() for each in objects if isinstance(each, AcceleratorClass))
    runtimes = {(type(each), each.id): each for each in objects if isinstance(each, Runtime)}
    found = (
        IgnoredValue(file, str(each.key.kind), each.object.id, reason)
        for file, each in held
        for reason in _faults(each.object, classes, runtimes)
    )
    return tuple(islice(found, _MOST_IGNORED))


def _selections(service: InferenceService, runtimes: Mapping[tuple[type, str], Runtime]) -> ServiceSelections:
    runtime = _runtime_of(service, runtimes)
    general = combined(ANY if runtime is None else runtime.requirements.selection, service.service.selection)
    if service.decoder is None:
        return ServiceSelections(combined(general, service.engine.selection))
    return ServiceSelections(general, service.engine.selection, service.decoder.selection)


def _runtime_of(service: InferenceService, runtimes: Mapping[tuple[type, str], Runtime]) -> Runtime | None:
    """Return the runtime that the service names: one of the cluster before one of its namespace, as OME looks."""
    if not service.runtime:
        return None
    space = service.metadata.namespace
    found = {(kind, name): each for (kind, name), each in runtimes.items() if each.name == service.runtime}
    own = found.get((ServingRuntime, f"{space}/{service.runtime}"))
    if service.namespaced_runtime:
        return own
    return next((each for (kind, _), each in found.items() if kind is not ServingRuntime), own)


def _faults(found: Object, classes: frozenset[str], runtimes: Mapping[tuple[type, str], Runtime]) -> Iterator[str]:
    """Yield values of an object that have no effect; names of classes count as unknown where any class is known."""
    yield from selection_faults(found)
    if isinstance(found, Runtime):
        yield from found.configuration_faults
    if classes:
        yield from class_faults(found, classes)
    if isinstance(found, InferenceService) and found.runtime and _runtime_of(found, runtimes) is None and runtimes:
        yield f"spec.runtime.name is {found.runtime!r}, which is no runtime: correct the name, or create it"
