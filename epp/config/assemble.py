# SPDX-License-Identifier: Apache-2.0
"""Turns a configuration into plugin instances: adds defaults and connects them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from epp.config.document import Path
from epp.config.features import check_features
from epp.config.instances import Builder, Instances
from epp.config.lint import lint
from epp.config.load import LoadedConfig
from epp.config.model import PluginRef
from epp.config.probe import rehearse
from epp.config.problems import Problem, in_order_of_the_file
from epp.config.profiles import build_profiles, choose_aggregator, choose_profile_picker
from epp.config.wiring import add_missing_producers, check_order, in_order
from epp.director import ParserTable, Pipeline
from epp.framework.datalayer import DataSource, Discovery, EndpointNotifications, Extractor, Feed, Tagger
from epp.framework.errors import ConfigurationError
from epp.framework.headers import RESERVED
from epp.framework.plugin import Plugin, all_roles
from epp.framework.roles import Parser, PreRequest, Producer
from epp.scheduling import Scheduler, SchedulingObserver

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
METRICS_SOURCE = "metrics-data-source"
METRICS_EXTRACTOR = "core-metrics-extractor"
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that one configuration defines."""

    loaded: LoadedConfig
    pipeline: Pipeline
    feeds: tuple[Feed, ...]
    taggers: tuple[Tagger[Any], ...]
    discovery: Discovery[Any] | None
    instances: Instances
    warnings: tuple[Problem, ...]
    """Warnings to its author."""

    @property
    def plugins(self) -> tuple[Plugin[Any], ...]:
        """All instances, those the file names first, then the implied ones."""
        return tuple(self.instances.by_name.values())


def assemble(loaded: LoadedConfig, builder: Builder, *, observer: SchedulingObserver | None = None) -> Assembly:
    """Build all plugins of a configuration; raises InvalidConfigError that names every plugin and profile at fault."""
    instances = Instances(loaded, builder)
    for index, spec in enumerate(loaded.model.plugins):
        instances.declare(spec, index)
    instances.connect()
    profiles = build_profiles(loaded.model, instances)
    check_features(loaded.model, instances)
    parsers = _attempt(instances, lambda: _parsers(loaded, instances), "requestHandler") or ()
    feeds = _attempt(instances, lambda: _feeds(loaded, instances), "dataLayer") or ()
    found = _discovery(loaded, instances)
    choose = partial(choose_profile_picker, profiles, instances, all_known=not loaded.gaps.profiles)
    handler = _attempt(instances, choose, "schedulingProfiles")
    aggregator = _attempt(instances, partial(choose_aggregator, handler, instances), "plugins")
    add_missing_producers(instances)
    producers = _attempt(instances, lambda: in_order(instances.of(Producer)), "plugins")
    check_order(instances)
    _rehearse(instances, builder)
    _check_headers(instances)
    instances.raise_problems()
    assert handler is not None  # noqa: S101  a problem otherwise
    assert aggregator is not None  # noqa: S101  the same
    assert producers is not None  # noqa: S101  the same
    complete = {name: profile for name, profile in profiles.items() if profile is not None}
    return Assembly(
        loaded=loaded,
        pipeline=Pipeline(
            parsers=ParserTable(parsers),
            scheduler=Scheduler(complete, handler, aggregator, observer=observer),
            plugins={role: instances.of(role) for role in all_roles()} | {Producer: producers},
            sets_headers=frozenset(name for plugin in instances for name in plugin.sets_headers),
        ),
        feeds=feeds,
        taggers=instances.of(Tagger),
        discovery=found,
        instances=instances,
        warnings=tuple(in_order_of_the_file([*instances.warnings, *lint(loaded, complete, feeds, instances)])),
    )


def _attempt(instances: Instances, step: Callable[[], _T], *path: str | int) -> _T | None:
    """Run a step that raises ConfigurationError; note that as a problem."""
    try:
        return step()
    except ConfigurationError as error:
        instances.fail(error.problem, *path, remedy=error.remedy)
        return None


def _parsers(loaded: LoadedConfig, instances: Instances) -> Sequence[Parser[Any]]:
    model = loaded.model
    refs: list[tuple[PluginRef, Path]]
    refs = [(ref, ("requestHandler", "parsers", index)) for index, ref in enumerate(model.request_handler.parsers)]
    if model.parser is not None:
        instances.warn("is deprecated: write it into requestHandler.parsers", "parser")
        refs.append((model.parser, ("parser",)))
    if refs:
        found = [instances.resolve(ref, Parser, *path) for ref, path in refs]
        return [parser for parser in found if parser is not None]
    return [instances.ensure(type_name, Parser, "the file names no parser") for type_name in DEFAULT_PARSERS]


def _feeds(loaded: LoadedConfig, instances: Instances) -> tuple[Feed, ...]:
    layer = loaded.model.data_layer
    feeds: list[Feed] = []
    for index, spec in enumerate(layer.sources):
        path = ("dataLayer", "sources", index)
        source = instances.resolve(spec, Plugin, *path)
        cls = instances.class_of(spec.plugin_ref)
        notifies = cls is not None and issubclass(cls, EndpointNotifications)
        role: type[Plugin[Any]] = Tagger if notifies else Extractor
        extractors: list[Plugin[Any]] = []
        for position, ref in enumerate(spec.extractors):
            told = instances.class_of(ref.plugin_ref)
            if notifies and told is not None and issubclass(told, (Producer, PreRequest)):
                message = f"has no effect: plugin {ref.plugin_ref!r} is told of endpoints without it"
                instances.warn(message, *path, "extractors", position)
                continue
            extractor = instances.resolve(ref, role, *path, "extractors", position)
            if extractor is None:
                continue
            if any(type(other) is type(extractor) for other in extractors):
                kind = extractor.plugin_type
                instances.fail(f"a second extractor of type {kind!r} on one source", *path, "extractors", position)
            extractors.append(extractor)
        if isinstance(source, DataSource):
            feeds.append(Feed(source, tuple(one for one in extractors if isinstance(one, Extractor))))
        elif cls is not None and not notifies and not issubclass(cls, DataSource):
            instances.fail(f"plugin {spec.plugin_ref!r} (type {cls.plugin_type}) is no DataSource", *path, "pluginRef")
    scraped = any(feed.source.plugin_type == METRICS_SOURCE for feed in feeds)
    if layer.inject_defaults and not scraped:
        why = "dataLayer.injectDefaults"
        source = instances.ensure(METRICS_SOURCE, DataSource, why)
        feeds.append(Feed(source, (instances.ensure(METRICS_EXTRACTOR, Extractor, why),)))
    return tuple(feeds)


def _discovery(loaded: LoadedConfig, instances: Instances) -> Discovery[Any] | None:
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


def _rehearse(instances: Instances, builder: Builder) -> None:
    """Try new plugins on made-up endpoints: undeclared reads and unusable results are refused, all else warned of."""
    for plugin in instances:
        if builder.previous.get(plugin.name) is plugin or plugin.name in instances.unconnected:
            continue
        path = instances.path_of(plugin)
        findings = rehearse(plugin, builder.clock.now)
        for name in findings.undeclared:
            instances.fail(
                f"plugin {plugin.name!r} reads {name!r} without declaring it: add it to `reads` or `may_read` of "
                f"{type(plugin).__name__}",
                *path,
            )
        for problem in findings.unusable:
            instances.fail(f"plugin {plugin.name!r} {problem}", *path)
        for problem in findings.raised:
            instances.warn(f"plugin {plugin.name!r} failed on made-up endpoints: {problem}", *path)
        if findings.is_slow:
            instances.warn(
                f"plugin {plugin.name!r} takes {findings.seconds * 1e3:.0f} ms for a few made-up endpoints, and every "
                "request waits for it: a whole decision should take less than 1 ms, without network, disk or sleep",
                *path,
            )


def _check_headers(instances: Instances) -> None:
    """Refuse declared headers that the picker sets by itself, and spellings that no header of a request ever has."""
    for plugin in instances:
        for name in plugin.sets_headers:
            problem = "which the picker sets by itself" if name in RESERVED else "which is no lower-case header name"
            if name in RESERVED or not _HEADER_NAME.fullmatch(name):
                instances.fail(
                    f"plugin {plugin.name!r} sets header {name!r}, {problem}: change `sets_headers` of "
                    f"{type(plugin).__name__}",
                    *instances.path_of(plugin),
                )
