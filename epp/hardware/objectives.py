# SPDX-License-Identifier: Apache-2.0
"""Bounds for accelerators in objects, and the base of the plugins that follow these objects."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

import msgspec
import structlog
from typing_extensions import TypeVar

from epp.framework import Parameters
from epp.framework.accelerators.selection import ANY, Selection, combined
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, no_endpoint
from epp.framework.plugin_status import IgnoredValue, InputState
from epp.kube.objects.base import Object
from epp.kube.objects.decode import Kinds
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.inference import POLICY_KINDS, POOL_GROUP, InferenceObjective, InferencePool
from epp.kube.objects.last_good import FileObjects, unknown_in
from epp.kube.objects.ome import THRESHOLD, AcceleratorClass, read_annotations
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
"""Objects that bound the accelerators of requests, and accelerator classes."""
_MOST_IGNORED = 100

_log = structlog.get_logger()


class ServiceSelections(msgspec.Struct, frozen=True):
    """Bounds of one InferenceService and its runtime."""

    general: Selection = ANY
    prefill: Selection = ANY
    """Bounds of the engine of a service with a decoder."""
    decode: Selection = ANY


class Objectives(msgspec.Struct, frozen=True):
    services: Mapping[str, ServiceSelections] = MappingProxyType({})
    by_model: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Services by model name in requests: the name of the base model or of the service."""
    by_label: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Services by name, which is the value of a pod label."""
    by_objective: Mapping[str, Selection] = MappingProxyType({})
    pool: Selection = ANY
    """Caps of the pool; the strictest caps of several pools."""
    ignored: tuple[IgnoredValue, ...] = ()
    """Ignored values of objects in effect; at most 100."""
    classes: tuple[str, ...] = ()
    """Accelerator classes in services and runtimes."""

    def services_of(self, models: Iterable[str], labels: frozenset[str]) -> tuple[str, ...]:
        """Return the services of a request by its model, or the only service with pods among the endpoints.

        If several services have the model, those with pods among the endpoints take precedence.
        """
        found = next((ids for model in models if (ids := self.by_model.get(model))), ())
        own = tuple(each for label in labels for each in self.by_label.get(label, ()))
        if not found:
            return own if len(labels) == 1 else ()
        return tuple(each for each in found if each in own) or found


def objectives_of(files: Iterable[FileObjects], pool_name: str = "") -> Objectives:
    """Return the bounds of the objects; a `pool_name` excludes other pools."""
    files = tuple(files)
    objects = [each for file in files for each in file.held if not each.metadata.is_terminating]
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
    """Return values without effect in objects of these kinds, at most 100."""
    files = tuple(files)
    held = [(file.file, each) for file in files for each in file.held if each.key[:2] in KINDS]
    objects = [each for _, each in held]
    classes = frozenset(each.name.lower() for each in objects if isinstance(each, AcceleratorClass))
    runtimes = {(type(each), each.id): each for each in objects if isinstance(each, Runtime)}
    found = (
        IgnoredValue(file, each.key.kind, each.id, reason)
        for file, each in held
        for reason in _faults(each, classes, runtimes)
    )
    unknown = unknown_in(files, without=frozenset({(OME, "AcceleratorClass")}))
    return tuple(islice((*found, *unknown), _MOST_IGNORED))


def _selections(service: InferenceService, runtimes: Mapping[tuple[type, str], Runtime]) -> ServiceSelections:
    runtime = _runtime_of(service, runtimes)
    general = combined(ANY if runtime is None else runtime.requirements.selection, service.service.selection)
    if service.decoder is None:
        return ServiceSelections(combined(general, service.engine.selection))
    return ServiceSelections(general, service.engine.selection, service.decoder.selection)


def _runtime_of(service: InferenceService, runtimes: Mapping[tuple[type, str], Runtime]) -> Runtime | None:
    """Return the runtime of the service; as in OME, one of the cluster precedes one of the namespace."""
    if not service.runtime:
        return None
    space = service.metadata.namespace
    found = {(kind, name): each for (kind, name), each in runtimes.items() if each.name == service.runtime}
    own = found.get((ServingRuntime, f"{space}/{service.runtime}"))
    if service.namespaced_runtime:
        return own
    return next((each for (kind, _), each in found.items() if kind is not ServingRuntime), own)


def _faults(found: Object, classes: frozenset[str], runtimes: Mapping[tuple[type, str], Runtime]) -> Iterator[str]:
    """Yield values of an object without effect; classes are checked if any class is known."""
    yield from selection_faults(found)
    if isinstance(found, Runtime):
        yield from found.configuration_faults
    if classes:
        yield from class_faults(found, classes)
    if isinstance(found, InferenceService) and found.runtime and _runtime_of(found, runtimes) is None and runtimes:
        yield f"spec.runtime.name is {found.runtime!r}, which is not a runtime: correct the name, or create it"


class ObjectParameters(Parameters, frozen=True):
    """Sources of objects."""

    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with objects that bound accelerators: InferenceService,
    ServingRuntime and ClusterServingRuntime of ome.io, InferenceObjective and InferencePool. New versions apply
    within a second. If there are AcceleratorClass objects, names of classes are checked against them."""
    read_cluster: bool = True
    """Also read these objects from the Kubernetes cluster of the pool, if there is one. An object in a file replaces
    one with the same name."""
    pool_name: str = ""
    """InferencePool in the files whose threshold is used; empty for the strictest threshold of all pools."""


OP = TypeVar("OP", bound=ObjectParameters, default=ObjectParameters)


class ObjectFollower(FollowsObjects[OP]):
    """Keeps `objectives` up to date; an object with an invalid value does not replace a valid one."""

    def setup(self) -> None:
        self.objectives = Objectives()
        self.start_following(self.parameters.paths, KINDS)

    @property
    def inputs(self) -> InputState:
        return replace(self._objects.inputs, ignored=self.objectives.ignored)

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        return super().kinds if self.parameters.read_cluster else ()

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  no tags
        objectives = objectives_of(change.files, self.parameters.pool_name)

        def effect() -> AffectedEndpoints:
            self.objectives = objectives
            return no_endpoint

        return effect
