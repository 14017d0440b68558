# SPDX-License-Identifier: Apache-2.0
"""The graph of a configuration with all defaults filled in."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import inf
from typing import Any

import msgspec

from epp.admission.flow_control.settings import BandSettings, FlowControlSettings
from epp.admission.tenant_quota_objects import written
from epp.config.assemble import Assembly
from epp.config.flow_control import fixed_ceilings
from epp.config.model import LARGEST_WRITTEN_OUT, POOL_SOURCE
from epp.config.plugin_reference import default_of
from epp.config.profiles import names_no_picker
from epp.framework.messages import without_credentials
from epp.framework.plugin import Datum, Plugin, all_roles
from epp.framework.quotas import QuotaSource
from epp.framework.request import DataKey
from epp.framework.result import DropCause
from epp.framework.roles import Producer
from epp.routing.scheduling.profile import Profile, ProfileFilter, WeightedScorer

_MOST_TENANTS = 50


class PluginUse(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One plugin at one place of the graph."""

    name: str
    type: str
    implied: str = ""
    """Reason that it was added; empty for a declared plugin."""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    """Parameters that differ from their defaults."""


class FilterUse(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    plugin: PluginUse
    fallback_on_empty: bool
    on_error: str
    stale_after_seconds: float | None = None
    on_stale: str = ""


class ScorerUse(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    plugin: PluginUse
    weight: float
    share: float
    """Weight divided by the sum of the profile's weights, 0..1."""
    category: str
    on_error: str
    stale_after_seconds: float | None = None
    on_stale: str = ""


class ProfileGraph(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The plugins of one cycle, in this order."""

    name: str
    filters: tuple[FilterUse, ...]
    scorers: tuple[ScorerUse, ...]
    picker: PluginUse
    fail_open: tuple[str, ...] = ()
    """Causes for which drops are ignored if they would leave no candidate."""
    constraint_status: int = 429
    drop_stale_after_seconds: float | None = None


class BandGraph(msgspec.Struct, frozen=True, rename="camel"):
    """Settings for requests that wait at one priority, or at all priorities without a band."""

    priority: int | None
    max_requests: int
    max_bytes: int
    ttl_seconds: float | None
    """None for no limit."""
    ceiling: float | None
    """Usage at which an endpoint is full for these requests; None if it depends on the pool."""
    fairness: PluginUse
    ordering: PluginUse


class FlowControlGraph(msgspec.Struct, frozen=True, rename="camel"):
    """Queues in front of full endpoints."""

    detector: PluginUse
    usage_limits: PluginUse
    max_requests: int | None
    """Limit on all priorities together; None for no limit."""
    max_bytes: int | None
    no_endpoint_ttl_seconds: float | None
    """None for no limit."""
    bands: tuple[BandGraph, ...]
    """Highest priority first."""
    default_band: BandGraph
    """Band of priorities of 0 and more without an entry in `bands`."""
    negative_band: BandGraph
    """Band of priorities below 0 without an entry in `bands`."""


class QuotaGraph(msgspec.Struct, frozen=True, rename="camel"):
    """Quotas of tenants, as far as known without a cluster."""

    source: PluginUse
    tenants: dict[str, dict[str, object]]
    """Quotas by tenant, in the format of the file; at most 50 tenants."""
    more: int
    """Number of other tenants."""
    default: dict[str, object] | None
    """Quota of all other tenants; None for no limit."""


class SourceGraph(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    precedence: int
    plugin: PluginUse


class FeedGraph(msgspec.Struct, frozen=True, rename="camel"):
    """A data source and the extractors that read its pages."""

    source: PluginUse
    interval_seconds: float | None
    """None for --refresh-metrics-interval."""
    extractors: tuple[PluginUse, ...]


class Graph(msgspec.Struct, frozen=True, rename="camel"):
    parsers: tuple[PluginUse, ...]
    flow_control: FlowControlGraph | None
    """None if requests do not wait."""
    shedding: PluginUse | None
    """The detector of the file for requests of negative priority; None for the default or with flow control."""
    quotas: tuple[QuotaGraph, ...]
    """In order of precedence."""
    producers: tuple[PluginUse, ...]
    profile_picker: PluginUse
    aggregator: PluginUse
    called: dict[str, tuple[PluginUse, ...]]
    """Plugins that others call, such as deciders, by role."""
    profiles: tuple[ProfileGraph, ...]
    shadows: tuple[ProfileGraph, ...]
    """Profiles that are only compared with the deciding ones."""
    hooks: dict[str, tuple[PluginUse, ...]]
    """Plugins around scheduling, in order of execution."""
    feeds: tuple[FeedGraph, ...]
    taggers: tuple[PluginUse, ...]
    discovery: PluginUse | None
    """The source of endpoints, if there is only one."""
    sources: tuple[SourceGraph, ...]
    """All sources of endpoints, in order of precedence."""

    @property
    def names_all_endpoints(self) -> bool:
        """Whether no endpoints come from flags."""
        return bool(self.sources) and all(each.plugin.type != POOL_SOURCE for each in self.sources)


def describe(assembly: Assembly) -> Graph:
    def use(plugin: Plugin[Any]) -> PluginUse:
        implied, parameters = assembly.instances.implied.get(plugin.name, ""), changed_parameters(plugin.parameters)
        reads, writes = _names(plugin.reads), _names(plugin.writes)
        return PluginUse(plugin.name, plugin.plugin_type, implied, reads, writes, parameters)

    def uses(plugins: Iterable[Plugin[Any]]) -> tuple[PluginUse, ...]:
        return tuple(map(use, plugins))

    def profile_graph(profile: Profile) -> ProfileGraph:
        weights = sum(weighted.weight for weighted in profile.scorers)
        picker = use(profile.picker)
        if picker.implied:  # another profile may have added it, with its reason
            picker = msgspec.structs.replace(picker, implied=names_no_picker(profile.name))
        return ProfileGraph(
            profile.name,
            tuple(
                FilterUse(use(x.filter), x.filter.parameters.fallback_on_empty, x.role.on_error.value, *_stale(x))
                for x in profile.filters
            ),
            tuple(
                ScorerUse(
                    use(one.scorer),
                    one.weight,
                    one.weight / weights if weights else 0.0,
                    one.scorer.category.value,
                    one.role.on_error.value,
                    *_stale(one),
                )
                for one in profile.scorers
            ),
            picker,
            tuple(cause.value for cause in DropCause if cause in profile.fail_open),
            profile.constraint_status,
            profile.drop_stale_after_seconds,
        )

    pipeline = assembly.pipeline
    named = {name for plugin in assembly.plugins for name in plugin.references.values()}
    scheduler = pipeline.scheduler
    return Graph(
        parsers=uses(pipeline.parsers.parsers),
        flow_control=None if pipeline.flow_control is None else _flow_control(pipeline.flow_control, use),
        shedding=None if pipeline.shedding is None else use(pipeline.shedding),
        quotas=tuple(_quotas(source, use(source)) for source in pipeline.of(QuotaSource)),
        producers=uses(pipeline.of(Producer)),
        profile_picker=use(scheduler.profile_picker),
        aggregator=use(scheduler.aggregator),
        called={
            cls.role.title.lower(): found
            for cls in all_roles()
            if (found := uses(plugin for plugin in assembly.instances.of(cls) if plugin.name in named))
        },
        profiles=tuple(map(profile_graph, scheduler.profiles.values())),
        shadows=tuple(map(profile_graph, pipeline.shadows.values())),
        hooks={
            cls.role.title.lower(): found
            for cls in sorted(all_roles(), key=lambda cls: cls.role.stage)
            if cls.role.hook and cls is not Producer and (found := uses(pipeline.of(cls)))
        },
        feeds=tuple(FeedGraph(use(x.source), x.source.interval_seconds, uses(x.extractors)) for x in assembly.feeds),
        taggers=uses(assembly.taggers),
        discovery=None if assembly.discovery is None else use(assembly.discovery),
        sources=tuple(SourceGraph(each.name, each.precedence, use(each.plugin)) for each in assembly.sources),
    )


def _flow_control(settings: FlowControlSettings, use: Callable[[Plugin[Any]], PluginUse]) -> FlowControlGraph:
    ceilings = fixed_ceilings(settings)

    def band_graph(priority: int | None, band: BandSettings) -> BandGraph:
        ttl, ceiling = _finite(band.ttl_seconds), None if priority is None else ceilings.get(priority)
        return BandGraph(priority, *band.limits, ttl, ceiling, use(band.fairness), use(band.ordering))

    return FlowControlGraph(
        detector=use(settings.detector),
        usage_limits=use(settings.usage_limits),
        max_requests=settings.limits.requests or None,
        max_bytes=settings.limits.size_bytes or None,
        no_endpoint_ttl_seconds=_finite(settings.no_endpoint_ttl_seconds),
        bands=tuple(band_graph(priority, settings.of(priority)) for priority in settings.priorities_with(0)),
        default_band=band_graph(None, settings.default_band),
        negative_band=band_graph(None, settings.negative_band),
    )


def _quotas(source: QuotaSource[Any], use: PluginUse) -> QuotaGraph:
    quotas = source.named_quotas
    shown = {tenant: written(quota) for tenant, quota in islice(sorted(quotas.items()), _MOST_TENANTS)}
    default = None if source.default_quota is None else written(source.default_quota)
    return QuotaGraph(use, shown, len(quotas) - len(shown), default)


def _finite(seconds: float) -> float | None:
    return None if seconds == inf else seconds


def _stale(member: ProfileFilter | WeightedScorer) -> tuple[float | None, str]:
    """Return the age at which endpoints become stale for a plugin, and its view of them."""
    rule = member.staleness
    return (None, "") if rule is None else (rule.after_seconds, rule.on_stale.value)


def changed_parameters(parameters: msgspec.Struct) -> dict[str, Any]:
    """Return the parameters that differ from their defaults, in the format of the file, without credentials."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(parameters):
        value = getattr(parameters, field.name)
        default = default_of(field)
        if default is msgspec.NODEFAULT or value != default:
            found[field.encode_name] = _as_written(value)
    return found


def _as_written(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return changed_parameters(value)
    if isinstance(value, Mapping):
        return {key: _as_written(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_written(one) for one in value]
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WRITTEN_OUT:
        return int(value)
    return msgspec.to_builtins(value)


def _names(data: Iterable[Datum]) -> tuple[str, ...]:
    """Return readable names, such as `prefix-match from mine` for a named producer."""
    producers = ((datum.name, datum.producer if isinstance(datum, DataKey) else "") for datum in data)
    return tuple(f"{name} from {producer}" if producer else name for name, producer in producers)
