# SPDX-License-Identifier: Apache-2.0
"""The `dataLayer` of a configuration: pages of endpoints, objects of a cluster, and the source of endpoints."""

from dataclasses import dataclass, field
from typing import Any

from epp.config.document import Path
from epp.config.instances import Instances
from epp.config.load import LoadedConfig
from epp.config.model import Source
from epp.framework.cluster import ObjectKind, ObjectNotifications, ObjectReader, Reading
from epp.framework.datalayer import DataSource, Discovery, EndpointNotifications, Extractor, Feed, Tagger
from epp.framework.plugin import Plugin
from epp.framework.roles import PreRequest, Producer

METRICS_SOURCE = "metrics-data-source"
METRICS_EXTRACTOR = "core-metrics-extractor"


@dataclass(slots=True)
class DataLayer:
    """Sources and their extractors."""

    feeds: tuple[Feed, ...] = ()
    """Pages of endpoints."""
    notified: dict[ObjectReader[Any], list[ObjectKind]] = field(default_factory=dict)
    """Kinds of objects for each plugin that is an extractor of them."""


def build_data_layer(loaded: LoadedConfig, instances: Instances) -> DataLayer:
    """Connect sources and extractors, with the default ones; raises ConfigurationError where these cannot be built."""
    layer = loaded.model.data_layer
    found = DataLayer()
    for index, spec in enumerate(layer.sources):
        path = ("dataLayer", "sources", index)
        source = instances.resolve(spec, Plugin, *path)
        cls = instances.class_of(spec.plugin_ref)
        if cls is not None and issubclass(cls, ObjectNotifications):
            _connect_readers(source, spec, path, instances, found)
            continue
        extractors = _extractors(cls, spec, path, instances)
        if isinstance(source, DataSource):
            found.feeds += (Feed(source, tuple(one for one in extractors if isinstance(one, Extractor))),)
        elif cls is not None and not issubclass(cls, (DataSource, EndpointNotifications)):
            instances.fail(f"plugin {spec.plugin_ref!r} (type {cls.plugin_type}) is no DataSource", *path, "pluginRef")
    scraped = any(feed.source.plugin_type == METRICS_SOURCE for feed in found.feeds)
    if layer.inject_defaults and not scraped:
        why = "dataLayer.injectDefaults"
        source = instances.ensure(METRICS_SOURCE, DataSource, why)
        found.feeds += (Feed(source, (instances.ensure(METRICS_EXTRACTOR, Extractor, why),)),)
    return found


def readings_of(instances: Instances, layer: DataLayer) -> tuple[Reading, ...]:
    """Return all plugins that read objects of the cluster, and the kinds for each.

    A source that names a kind of the plugin's own, with a version, stands for that.
    """
    found = []
    for reader in instances.of(ObjectReader):
        kinds = {(kind.group, kind.kind): kind for kind in (*reader.kinds, *layer.notified.get(reader, ()))}
        found.append(Reading(reader, tuple(kinds.values())))
    return tuple(found)


def choose_discovery(loaded: LoadedConfig, instances: Instances) -> Discovery[Any] | None:
    """Return the source of endpoints; None where the file names none."""
    path: Path = ("dataLayer", "discovery")
    refs = loaded.model.data_layer.discovery
    if refs is None:
        return None
    if refs.endpoints is not None:
        if refs.plugin_ref:
            instances.warn("has no effect beside discovery.endpoints: remove it", *path, "pluginRef")
        return instances.resolve(refs.endpoints, Discovery, *path, "endpoints")
    if refs.plugin_ref:
        return instances.resolve_name(refs.plugin_ref, Discovery, *path, "pluginRef")
    if refs.peers is None:
        instances.fail("names no source: write endpoints: {pluginRef: ...}, or leave it out", *path)
    return None


def _extractors(
    cls: type[Plugin[Any]] | None, spec: Source, path: Path, instances: Instances
) -> tuple[Plugin[Any], ...]:
    """Return the extractors of pages, or the taggers of endpoints."""
    notifies = cls is not None and issubclass(cls, EndpointNotifications)
    found: list[Plugin[Any]] = []
    for position, ref in enumerate(spec.extractors):
        told = instances.class_of(ref.plugin_ref)
        if notifies and told is not None and issubclass(told, (Producer, PreRequest)):
            message = f"has no effect: plugin {ref.plugin_ref!r} is told of endpoints without it"
            instances.warn(message, *path, "extractors", position)
            continue
        role: type[Plugin[Any]] = Tagger if notifies else Extractor
        extractor = instances.resolve(ref, role, *path, "extractors", position)
        if extractor is not None:
            _refuse_second(extractor, found, (*path, "extractors", position), instances)
            found.append(extractor)
    return tuple(found)


def _connect_readers(
    source: Plugin[Any] | None, spec: Source, path: Path, instances: Instances, layer: DataLayer
) -> None:
    """Add the kind of the source to those of each of its extractors."""
    found: list[Plugin[Any]] = []
    for position, ref in enumerate(spec.extractors):
        place = (*path, "extractors", position)
        reader = instances.resolve(ref, ObjectReader, *place)
        if reader is None:
            continue
        _refuse_second(reader, found, place, instances)
        found.append(reader)
        if isinstance(source, ObjectNotifications):
            if not reader.can_read(source.kind):
                kind = reader.plugin_type
                instances.fail(f"plugin {reader.name!r} (type {kind}) reads no objects of kind {source.kind}", *place)
            layer.notified.setdefault(reader, []).append(source.kind)
    if not spec.extractors:
        instances.warn("has no effect without extractors, which are told of the objects", *path)


def _refuse_second(plugin: Plugin[Any], others: list[Plugin[Any]], place: Path, instances: Instances) -> None:
    if any(type(other) is type(plugin) for other in others):
        instances.fail(f"a second extractor of type {plugin.plugin_type!r} on one source", *place)
