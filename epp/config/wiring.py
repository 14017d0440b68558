# SPDX-License-Identifier: Apache-2.0
"""Connections of plugins: the data that they exchange, and the `dataLayer` with sources and extractors."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from epp.config.document import Path
from epp.config.instances import Instances
from epp.config.load import LoadedConfig
from epp.config.model import DiscoveryRefs, NamedSource, Source
from epp.framework import datalayer
from epp.framework.cluster_objects import ObjectKind, ObjectNotifications, ObjectReader, Reading
from epp.framework.datalayer import DataSource, Discovery, EndpointSource, Extractor, Feed, Tagger
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Datum, Plugin, R, Stage, roles_of
from epp.framework.request import DataKey
from epp.framework.roles import PreRequest, Producer
from epp.framework.snapshot import Column

METRICS_SOURCE = "metrics-data-source"
_METRICS_SOURCES = frozenset({METRICS_SOURCE, "multicluster-metrics-data-source"})
METRICS_EXTRACTOR = "core-metrics-extractor"


def add_missing_producers(instances: Instances) -> None:
    """Add the default producer of each datum that plugins read and no plugin writes."""
    reported: set[tuple[str, Datum]] = set()
    while True:
        written = {datum for plugin in instances for datum in plugin.writes}
        missing = [
            (plugin, datum)
            for plugin in instances
            for datum in plugin.reads
            if (isinstance(datum, DataKey) or datum.default_producer or _declared_producer(datum))
            and datum not in written
            and (plugin.name, datum) not in reported
        ]
        if not missing:
            return
        reader, datum = missing[0]
        reported.add((reader.name, datum))
        problem = _cannot_be_added(datum)
        if problem:
            instances.fail(f"plugin {reader.name!r} reads {datum.name!r}{problem}", *instances.path_of(reader))
        else:
            _warn_of_another(reader, datum, instances)
            add = partial(instances.add, datum.default_producer, f"{reader.name} reads {datum.name}")
            instances.attempt(add, *instances.path_of(reader))


def check_order(instances: Instances) -> None:
    """Refuse plugins that read request data before it is written."""
    writers = {key: plugin for plugin in instances for key in plugin.writes}
    for reader in instances:
        for key in reader.reads:
            writer = writers.get(key, reader)
            if isinstance(key, DataKey) and _stage(writer) > _stage(reader):
                problem = (
                    f"plugin {reader.name!r} reads {key.name!r}, which {writer.name!r} only writes later in a request"
                )
                instances.fail(problem, *instances.path_of(reader))


def in_order(plugins: Iterable[R]) -> tuple[R, ...]:
    """Sort plugins after those whose data they read, else as declared; raises ConfigurationError for a cycle."""
    declared = tuple(plugins)
    writers = {key: plugin for plugin in declared for key in plugin.writes}
    sorter: TopologicalSorter[R] = TopologicalSorter()
    for plugin in declared:
        wanted = (*plugin.reads, *plugin.may_read)
        sorter.add(plugin, *(writers[key] for key in wanted if key in writers and writers[key] is not plugin))
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(plugin.name for plugin in error.args[1])
        raise ConfigurationError(f"plugins read each other's data in a cycle: {names}") from error


def _cannot_be_added(datum: Datum) -> str:
    """Return why no producer can be added for a datum; empty if one can."""
    if isinstance(datum, DataKey) and datum.producer:
        return f" from producer {datum.producer!r}, which is not declared"
    if wanted := _declared_producer(datum):
        return f", which no plugin here writes: add a {wanted} to plugins, and to a source of dataLayer"
    return "" if datum.default_producer else ", which no plugin here writes"


def _declared_producer(datum: Datum) -> str:
    return datum.declared_producer if isinstance(datum, Column) else ""


def _warn_of_another(reader: Plugin[Any], datum: Datum, instances: Instances) -> None:
    """Warn about a declared producer of the type whose name the reader does not use."""
    for other in instances:
        if other.plugin_type == datum.default_producer:
            problem = f"plugin {reader.name!r} reads {datum.name!r} from an added {datum.default_producer}, not from"
            remedy = f"name {other.name!r} in its parameters, or remove the name of {other.name!r}"
            instances.warn(f"{problem} {other.name!r}: {remedy}", *instances.path_of(reader))


def _stage(plugin: Plugin[Any]) -> Stage:
    return min((cls.role.stage for cls in roles_of(type(plugin))), default=Stage.BACKGROUND)


@dataclass(slots=True)
class DataLayer:
    feeds: tuple[Feed, ...] = ()
    """Pages of endpoints."""
    notified: dict[ObjectReader[Any], list[ObjectKind]] = field(default_factory=dict)
    """Kinds of objects for each extractor of objects."""


def build_data_layer(loaded: LoadedConfig, instances: Instances) -> DataLayer:
    """Connect sources and extractors; raises ConfigurationError if the default ones cannot be built."""
    layer = loaded.model.data_layer
    found = DataLayer()
    for index, spec in enumerate(layer.sources):
        path = ("dataLayer", "sources", index)
        source = instances.resolve(spec, Plugin, *path)
        if isinstance(source, ObjectNotifications):
            _connect(source.kind, _extractors(ObjectReader, spec, path, instances), instances, found)
            if not spec.extractors:
                instances.warn("has no effect without extractors, which receive the objects", *path)
        elif isinstance(source, datalayer.EndpointNotifications):
            _extractors(Tagger, spec, path, instances)
        else:
            extractors = tuple(_extractors(Extractor, spec, path, instances).values())
            if isinstance(source, DataSource):
                found.feeds += (Feed(source, extractors),)
            elif source is not None and not isinstance(source, Producer):
                problem = f"plugin {source.name!r} (type {source.plugin_type}) does not implement DataSource"
                instances.fail(problem, *path, "pluginRef")
    scraped = any(feed.source.plugin_type in _METRICS_SOURCES for feed in found.feeds)
    if layer.inject_defaults and not scraped:
        why = "dataLayer.injectDefaults"
        source = instances.ensure(METRICS_SOURCE, DataSource, why)
        found.feeds += (Feed(source, (instances.ensure(METRICS_EXTRACTOR, Extractor, why),)),)
    return found


def readings_of(instances: Instances, layer: DataLayer) -> tuple[Reading, ...]:
    """Return all plugins that read objects of the cluster, with their kinds.

    A kind of a source, which has a version, replaces the same kind of the plugin.
    """
    found = []
    for reader in instances.of(ObjectReader):
        kinds = {(kind.group, kind.kind, kind.hub): kind for kind in (*reader.kinds, *layer.notified.get(reader, ()))}
        found.append(Reading(reader, tuple(kinds.values())))
    return tuple(found)


def choose_sources(loaded: LoadedConfig, instances: Instances) -> tuple[EndpointSource, ...]:
    """Return the sources of endpoints in order of precedence; none if the file names none."""
    refs = loaded.model.data_layer.discovery
    found: list[EndpointSource] = []
    for spec, place in () if refs is None else _named_sources(refs, instances):
        plugin = instances.resolve(spec, Discovery, *place)
        if plugin is None:
            continue
        source = EndpointSource(plugin, spec.name or spec.plugin_ref, spec.precedence)
        if any(plugin is other.plugin for other in found):
            instances.fail(f"names the plugin {plugin.name!r} twice: leave one of them out", *place)
        elif any(source.name == other.name for other in found):
            instances.fail(f"two sources are named {source.name!r}: choose another name", *place, "name")
        found.append(source)
    return tuple(sorted(found, key=lambda source: -source.precedence))


def _named_sources(refs: DiscoveryRefs | list[NamedSource], instances: Instances) -> Iterator[tuple[NamedSource, Path]]:
    """Yield each reference to a source of endpoints, and its place."""
    path: Path = ("dataLayer", "discovery")
    if isinstance(refs, DiscoveryRefs):
        if refs.endpoints is not None and refs.plugin_ref:
            instances.warn("has no effect besides discovery.endpoints: remove it", *path, "pluginRef")
        elif refs.plugin_ref:
            yield NamedSource.model_validate({"pluginRef": refs.plugin_ref}), path
        elif refs.endpoints is None and refs.peers is None:
            instances.fail("names no source: write endpoints: {pluginRef: ...}, or leave it out", *path)
    endpoints, path = (refs, path) if isinstance(refs, list) else (refs.endpoints, (*path, "endpoints"))
    if isinstance(endpoints, list):
        yield from ((spec, (*path, index)) for index, spec in enumerate(endpoints))
    elif endpoints is not None:
        yield endpoints, path


def _connect(kind: ObjectKind, readers: dict[Path, ObjectReader[Any]], instances: Instances, layer: DataLayer) -> None:
    for place, reader in readers.items():
        if not reader.can_read(kind):
            called = f"plugin {reader.name!r} (type {reader.plugin_type})"
            instances.fail(f"{called} reads no objects of kind {kind}", *place)
        layer.notified.setdefault(reader, []).append(kind)


def _extractors(role: type[R], spec: Source, path: Path, instances: Instances) -> dict[Path, R]:
    """Return the extractors of a source with this role, by their places."""
    found: dict[Path, R] = {}
    for position, ref in enumerate(spec.extractors):
        place = (*path, "extractors", position)
        named = instances.by_name.get(ref.plugin_ref)
        if role is Tagger and isinstance(named, (Producer, PreRequest)) and not isinstance(named, Tagger):
            instances.warn(f"has no effect: plugin {ref.plugin_ref!r} is notified of endpoints in any case", *place)
        elif (extractor := instances.resolve(ref, role, *place)) is not None:
            if any(type(other) is type(extractor) for other in found.values()):
                instances.fail(f"is a second extractor of type {extractor.plugin_type!r} of one source", *place)
            found[place] = extractor
    return found
