# SPDX-License-Identifier: Apache-2.0
"""The graph of a configuration with all defaults filled in."""

from collections.abc import Iterable
from typing import Any

import msgspec

from epp.config.assemble import Assembly
from epp.framework.plugin import Datum, Plugin, all_roles
from epp.framework.request import DataKey
from epp.framework.roles import Producer
from epp.scheduling import Profile


class PluginUse(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One plugin at one place of the graph."""

    name: str
    type: str
    implied: str = ""
    """Why it is there, where the file does not declare it."""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class FilterUse(msgspec.Struct, frozen=True, rename="camel"):
    """A filter of a profile."""

    plugin: PluginUse
    fallback_on_empty: bool
    on_error: str


class ScorerUse(msgspec.Struct, frozen=True, rename="camel"):
    """A scorer of a profile."""

    plugin: PluginUse
    weight: float
    share: float
    """Of the sum of the profile's weights, 0..1."""
    category: str
    on_error: str


class ProfileGraph(msgspec.Struct, frozen=True, rename="camel"):
    """What one cycle runs, in this order."""

    name: str
    filters: tuple[FilterUse, ...]
    scorers: tuple[ScorerUse, ...]
    picker: PluginUse


class FeedGraph(msgspec.Struct, frozen=True, rename="camel"):
    """A data source and the extractors that read its pages."""

    source: PluginUse
    interval_seconds: float | None
    """None for --refresh-metrics-interval."""
    extractors: tuple[PluginUse, ...]


class Graph(msgspec.Struct, frozen=True, rename="camel"):
    """The whole of it."""

    parsers: tuple[PluginUse, ...]
    producers: tuple[PluginUse, ...]
    profile_picker: PluginUse
    aggregator: PluginUse
    profiles: tuple[ProfileGraph, ...]
    hooks: dict[str, tuple[PluginUse, ...]]
    """Plugins around scheduling, in the order in which they run."""
    feeds: tuple[FeedGraph, ...]
    taggers: tuple[PluginUse, ...]
    discovery: PluginUse | None


def describe(assembly: Assembly) -> Graph:
    """Return the graph of a configuration."""

    def use(plugin: Plugin[Any]) -> PluginUse:
        return PluginUse(
            plugin.name,
            plugin.plugin_type,
            assembly.instances.implied.get(plugin.name, ""),
            _names(plugin.reads),
            _names(plugin.writes),
        )

    def uses(plugins: Iterable[Plugin[Any]]) -> tuple[PluginUse, ...]:
        return tuple(map(use, plugins))

    def profile_graph(profile: Profile) -> ProfileGraph:
        weights = sum(weighted.weight for weighted in profile.scorers)
        return ProfileGraph(
            profile.name,
            tuple(
                FilterUse(use(one.filter), one.filter.parameters.fallback_on_empty, one.role.on_error.value)
                for one in profile.filters
            ),
            tuple(
                ScorerUse(
                    use(one.scorer),
                    one.weight,
                    one.weight / weights if weights else 0.0,
                    one.scorer.category.value,
                    one.role.on_error.value,
                )
                for one in profile.scorers
            ),
            use(profile.picker),
        )

    pipeline = assembly.pipeline
    scheduler = pipeline.scheduler
    return Graph(
        parsers=uses(pipeline.parsers.parsers),
        producers=uses(pipeline.of(Producer)),
        profile_picker=use(scheduler.profile_picker),
        aggregator=use(scheduler.aggregator),
        profiles=tuple(map(profile_graph, scheduler.profiles.values())),
        hooks={
            cls.role.title.lower(): found
            for cls in sorted(all_roles(), key=lambda cls: cls.role.stage)
            if cls.role.hook and cls is not Producer and (found := uses(pipeline.of(cls)))
        },
        feeds=tuple(
            FeedGraph(use(feed.source), feed.source.interval_seconds, uses(feed.extractors)) for feed in assembly.feeds
        ),
        taggers=uses(assembly.taggers),
        discovery=None if assembly.discovery is None else use(assembly.discovery),
    )


def _names(data: Iterable[Datum]) -> tuple[str, ...]:
    """Return names for people, `prefix-match from mine` where a producer is named."""
    return tuple(
        f"{datum.name} from {datum.producer}" if isinstance(datum, DataKey) and datum.producer else datum.name
        for datum in data
    )
