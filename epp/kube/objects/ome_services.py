# SPDX-License-Identifier: Apache-2.0
"""Accelerator requirements of InferenceService, ServingRuntime and ClusterServingRuntime of ome.io."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import msgspec

from epp.framework.accelerators.selection import ANY
from epp.framework.messages import printable
from epp.framework.suggestions import hint_at
from epp.kube.objects.base import ClusterObject, Object, Part, convert
from epp.kube.objects.inference import InferenceObjective, InferencePool
from epp.kube.objects.ome import (
    THRESHOLD,
    Layer,
    class_names,
    in_quotes,
    read_annotations,
    read_requirements,
    read_selector,
)

_SIZES = ("tensorParallelSize", "pipelineParallelSize", "dataParallelSize")
_MOST_CHARACTERS = 60
OME = "ome.io"
SERVICE_LABEL = "ome.io/inferenceservice"
"""Label of the pods of a service; the value is the name of the service."""
_PER_CLASS = "acceleratorConfig"
_MOST_FAULTS = 100


def configuration_faults(configuration: Mapping[str, object], place: str) -> Iterator[str]:
    """Yield field, value and remedy of each invalid value and each limit without effect."""
    spelled: dict[str, str] = {}
    for name, values in configuration.items():
        where = f"{place}[{printable(name, _MOST_CHARACTERS)}]"
        first = spelled.setdefault(name.lower(), name)
        if first != name:
            yield f"{where} is the same class as {printable(first, _MOST_CHARACTERS)!r}: write it once"
        if not isinstance(values, Mapping):
            yield f"{where} is {in_quotes(values)}: write a mapping"
            continue
        yield from _faults_of_class(values, where)


def _faults_of_class(values: Mapping[str, object], place: str) -> Iterator[str]:
    least = values.get("minMemoryPerBillionParams")
    if least is not None:
        remedy = "write the requirement of the model as spec.acceleratorRequirements.minMemory"
        yield f"{place}.minMemoryPerBillionParams is {in_quotes(least)}, but does not limit requests: {remedy}"
    parallel = values.get("tensorParallelismOverride")
    if parallel is None:
        return
    if not isinstance(parallel, Mapping):
        yield f"{place}.tensorParallelismOverride is {in_quotes(parallel)}: write a mapping"
        return
    for size in _SIZES:
        value = parallel.get(size)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            where = f"{place}.tensorParallelismOverride.{size}"
            yield f"{where} is {in_quotes(value)}: write a whole number of at least 1"


SERVICE_KINDS = frozenset((OME, kind) for kind in ("InferenceService", "ServingRuntime", "ClusterServingRuntime"))


class InferenceService(Object, frozen=True, kw_only=True):
    model: str = ""
    runtime: str = ""
    """Name of the runtime; empty if OME chooses one."""
    namespaced_runtime: bool = False
    """Whether the runtime is a ServingRuntime of the namespace, not a ClusterServingRuntime."""
    service: Layer = Layer()
    engine: Layer = Layer()
    decoder: Layer | None = None
    """None for a service without a decoder: its engine does prefill and decode."""
    configured: tuple[tuple[str, str], ...] = ()
    """Places and classes of `acceleratorConfigurations`."""

    @property
    def places(self) -> Iterator[tuple[str, Layer]]:
        """Layers with their places in the object."""
        yield "spec.acceleratorSelector or an annotation", self.service
        yield "spec.engine.acceleratorOverride", self.engine
        if self.decoder is not None:
            yield "spec.decoder.acceleratorOverride", self.decoder


class Runtime(Object, frozen=True, kw_only=True):
    """A runtime for models, and the accelerators that it requires."""

    requirements: Layer = Layer()
    configured_classes: tuple[str, ...] = ()
    configured: tuple[tuple[str, str], ...] = ()
    """Places and classes of `acceleratorConfigurations`."""
    configuration_faults: tuple[str, ...] = ()
    """Field, value and remedy of invalid and ineffective values in the configurations of model formats."""

    @property
    def places(self) -> Iterator[tuple[str, Layer]]:
        """Layers with their places in the object."""
        yield "spec.acceleratorRequirements", self.requirements


class ServingRuntime(Runtime, frozen=True, kw_only=True):
    """A runtime for services in its namespace."""


class ClusterServingRuntime(Runtime, ClusterObject, frozen=True, kw_only=True):
    """A runtime for services of all namespaces."""


R = TypeVar("R", bound=Runtime)


class _Component(Part, frozen=True, kw_only=True):
    accelerator_override: Any = None
    accelerator_configurations: Any = None


class _RawService(Object, frozen=True, kw_only=True):
    model: Any = msgspec.field(default="", name="spec.model.name")
    runtime: Any = msgspec.field(default="", name="spec.runtime.name")
    runtime_kind: Any = msgspec.field(default="", name="spec.runtime.kind")
    selector: Any = msgspec.field(default=None, name="spec.acceleratorSelector")
    configurations: Any = msgspec.field(default=None, name="spec.acceleratorConfigurations")
    engine: _Component = msgspec.field(default=_Component(), name="spec.engine")
    decoder: _Component | None = msgspec.field(default=None, name="spec.decoder")


class _Format(Part, frozen=True, kw_only=True):
    accelerator_config: Mapping[str, Any] = msgspec.field(default_factory=dict)


class _RawRuntime(Object, frozen=True, kw_only=True):
    requirements: Any = msgspec.field(default=None, name="spec.acceleratorRequirements")
    formats: tuple[_Format, ...] = msgspec.field(default=(), name="spec.supportedModelFormats")
    configurations: Any = msgspec.field(default=None, name="spec.acceleratorConfigurations")


def read_inference_service(document: object) -> InferenceService:
    """Return the object; raises ValueError. Invalid values for accelerators become faults of the layers."""
    raw = convert(document, _RawService)
    decoder = raw.decoder or _Component()
    override = "spec.decoder.acceleratorOverride"
    return InferenceService(
        metadata=raw.metadata,
        model=_name(raw.model),
        runtime=_name(raw.runtime),
        namespaced_runtime=raw.runtime_kind == "ServingRuntime",
        service=read_annotations(raw.metadata.annotations).over(
            read_selector(raw.selector, "spec.acceleratorSelector")
        ),
        engine=read_selector(raw.engine.accelerator_override, "spec.engine.acceleratorOverride"),
        decoder=None if raw.decoder is None else read_selector(decoder.accelerator_override, override),
        configured=(
            *_configured(raw.configurations, "spec"),
            *_configured(raw.engine.accelerator_configurations, "spec.engine"),
            *_configured(decoder.accelerator_configurations, "spec.decoder"),
        ),
    )


def _configured(configurations: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield place and class of each configuration that selects a class."""
    for index, each in enumerate(configurations if isinstance(configurations, list | tuple) else ()):
        selector = each.get("selector") if isinstance(each, Mapping) else None
        name = selector.get("acceleratorClass") if isinstance(selector, Mapping) else None
        if isinstance(name, str) and name:
            yield f"{place}.acceleratorConfigurations[{index}].selector.acceleratorClass", name.lower()


def read_runtime(document: object, cls: type[R]) -> R:
    raw = convert(document, _RawRuntime)
    faults = (
        fault
        for index, each in enumerate(raw.formats)
        for fault in configuration_faults(each.accelerator_config, f"spec.supportedModelFormats[{index}].{_PER_CLASS}")
    )
    return cls(
        metadata=raw.metadata,
        requirements=read_requirements(raw.requirements, "spec.acceleratorRequirements"),
        configured_classes=tuple({name.lower(): None for each in raw.formats for name in each.accelerator_config}),
        configured=tuple(_configured(raw.configurations, "spec")),
        configuration_faults=tuple(islice(faults, _MOST_FAULTS)),
    )


def selection_faults(found: Object) -> Iterable[str]:
    """Return field, value and remedy of each invalid value for accelerators."""
    if isinstance(found, InferencePool):
        return read_annotations(found.metadata.annotations, only=(THRESHOLD,)).faults
    if isinstance(found, InferenceObjective):
        return read_annotations(found.metadata.annotations).faults
    return [fault for _, layer in _layers(found) for fault in layer.faults]


def class_faults(found: Object, known: frozenset[str]) -> Iterator[str]:
    """Yield an error for each unknown class in an object."""
    named: list[tuple[str, tuple[str, ...]]] = []
    if isinstance(found, InferenceObjective):
        named.append(("an annotation", class_names(read_annotations(found.metadata.annotations).selection)))
    if isinstance(found, InferenceService | Runtime):
        named += [(place, (name,)) for place, name in found.configured]
        named += [(place, class_names(layer.selection)) for place, layer in found.places]
    if isinstance(found, Runtime):
        named.append((f"{_PER_CLASS} of a model format", found.configured_classes))
    for place, names in named:
        for name in names:
            if name not in known:
                remedy = hint_at(name, known, "correct the name")
                yield f"{place} names class {name!r}, and there is no such AcceleratorClass: {remedy}"


def selects_accelerators(found: Object) -> bool:
    """Return whether the object is a service or runtime with a limit or preference."""
    return any(layer.selection != ANY for _, layer in _layers(found))


def classes_named(found: Object) -> tuple[str, ...]:
    """Return the accelerator classes in the limits and preferences of a service or runtime."""
    return tuple(name for _, layer in _layers(found) for name in class_names(layer.selection))


def _layers(found: Object) -> Iterable[tuple[str, Layer]]:
    """Return the places and layers of a service or runtime; none for other kinds."""
    return found.places if isinstance(found, InferenceService | Runtime) else ()


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""
