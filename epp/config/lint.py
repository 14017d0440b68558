# SPDX-License-Identifier: Apache-2.0
"""Warnings about configurations that are valid and probably not intended."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from epp.admission.flow_control.settings import FlowControlSettings
from epp.config.document import Problem
from epp.config.flow_control import ceilings_at
from epp.config.instances import Instances
from epp.config.load import LoadedConfig
from epp.config.profiles import plugins_of
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, ANY, MakesSelections
from epp.framework.datalayer import Feed, KnowsAccelerators, NamesPlacementTemplate, Tagger, unknown_accelerators
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Datum, Plugin, Stage, roles_of
from epp.framework.quotas import QuotaSource
from epp.framework.request import DataKey
from epp.framework.result import DropCause
from epp.framework.roles import Category, EndpointObserver, Filter, Picker, PreRequest, ResponseHeaders, Scorer
from epp.framework.snapshot import ACCELERATOR, LOAD_AT, METRICS_AT, REACHABLE, REQUEST_COLUMNS, Attribute, Column
from epp.framework.suggestions import hint_at
from epp.routing.scheduling.profile import Profile

_ONLY_IN_PROFILES: set[type[Any]] = {Filter, Scorer, Picker, PreRequest, ResponseHeaders, EndpointObserver}
"""Roles of plugins that are used only in profiles."""
_OWN_COLUMNS = (*REQUEST_COLUMNS, METRICS_AT, LOAD_AT, REACHABLE)
"""Columns that the picker itself fills for every endpoint."""
_STATUS = {DropCause.AVAILABILITY: 503, DropCause.STALE: 503}
"""Statuses other than 429 of requests that are refused because filters dropped all candidates for a cause."""


def lint(
    loaded: LoadedConfig,
    profiles: Mapping[str, Profile],
    feeds: Sequence[Feed],
    instances: Instances,
    flow_control: FlowControlSettings | None,
) -> list[Problem]:
    def of_plugins(find: Callable[[Plugin[Any]], Iterable[str]], *part: str) -> list[Problem]:
        return [loaded.problem(text, *instances.path_of(each), *part) for each in instances for text in find(each)]

    collected = {datum.name for feed in feeds for extractor in feed.extractors for datum in extractor.writes}
    collected |= {datum.name for tagger in instances.of(Tagger) for datum in tagger.writes}
    collected |= {column.name for column in _OWN_COLUMNS}
    read = {datum for plugin in instances for datum in (*plugin.reads, *plugin.may_read)}
    needed = {datum.name for plugin in instances for datum in plugin.reads}  # wiring warns about these
    place = "flowControl" if loaded.model.flow_control else "featureGates"
    is_tagged = ACCELERATOR.name in collected
    return [
        *(
            loaded.problem(message, "schedulingProfiles", index)
            for index, profile in enumerate(profiles.values())
            for message in _of_profile(profile, instances)
        ),
        *(loaded.problem(message, place) for message in _of_flow_control(flow_control, feeds)),
        *of_plugins(partial(_unused, used=_used(loaded, profiles), instances=instances)),
        *of_plugins(lambda plugin: (*_never_collected(plugin, collected), *_never_read(plugin, read, needed))),
        *of_plugins(partial(_unknown_accelerators, instances=instances), "parameters"),
        *of_plugins(partial(_of_selections, instances=instances)),
        *of_plugins(partial(_unknown_template, sources=instances.of(KnowsAccelerators)), "parameters"),
        *of_plugins(partial(_of_quotas, tagged=is_tagged, may_wait=flow_control is not None), "parameters"),
    ]


def _used(loaded: LoadedConfig, profiles: Mapping[str, Profile]) -> set[str]:
    """Return the names of plugins in profiles, and all texts that may name others."""
    model = loaded.model.model_dump()
    model["plugins"] = [spec["parameters"] for spec in model["plugins"]]
    return {*texts_in(model), *(plugin.name for profile in profiles.values() for plugin in plugins_of(profile))}


def _unused(plugin: Plugin[Any], used: set[str], instances: Instances) -> Iterator[str]:
    """Warn about a declared plugin that only profiles could use, but no profile names."""
    may_be_used = plugin.name in used or plugin.name in instances.implied
    if not may_be_used and _ONLY_IN_PROFILES.issuperset(roles_of(type(plugin))):
        yield (
            f"plugin {plugin.name!r} has no effect: no profile and no other plugin refers to it; add a pluginRef to a "
            "profile, or remove it"
        )


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_in(each)


def _of_quotas(source: Plugin[Any], *, tagged: bool, may_wait: bool) -> Iterator[str]:
    """Warn about limits on unknown data, and about requests that cannot wait."""
    if not isinstance(source, QuotaSource):
        return
    kinds = {"hardware": source.limits_hardware, "dollars": source.limits_dollars}
    limited = " and ".join(kind for kind, is_limited in kinds.items() if is_limited)
    if limited and not tagged:
        yield (
            f"plugin {source.name!r} limits {limited}, but no data source of this configuration reports accelerators: "
            "these limits have no effect; add `- type: accelerator-data-source` under plugins"
        )
    if source.asks_to_wait and not may_wait:
        yield (
            f"plugin {source.name!r} makes requests above a quota wait, but the feature gate flowControl is off: they "
            "are refused with 429; add flowControl to featureGates, or write whenExceeded: Refuse"
        )


def _unknown_template(plugin: Plugin[Any], sources: Sequence[KnowsAccelerators[Any]]) -> Iterator[str]:
    """Warn about an unknown template if others are known; templates of a cluster are not known yet."""
    name = plugin.placement_template if isinstance(plugin, NamesPlacementTemplate) else ""
    known = sorted({each for source in sources for each in source.placement_templates})
    if name and known and name not in known:
        yield (
            f"plugin {plugin.name!r} names template {name!r}, but there is no such SchedulingConfigTemplate: the name "
            f"has no effect; {hint_at(name, known)}"
        )


def refuse_unknown_accelerators(instances: Instances) -> None:
    """Record unknown accelerators as problems if a source of accelerators is strict."""
    if any(source.refuses_unknown for source in instances.of(KnowsAccelerators)):
        for plugin in instances:
            for message in _unknown_accelerators(plugin, instances):
                remedy = "correct the name, add the class, or set unknownClasses to lenient"
                instances.fail(message, *instances.path_of(plugin), "parameters", remedy=remedy)


def _unknown_accelerators(plugin: Plugin[Any], instances: Instances) -> Iterator[str]:
    for name in unknown_accelerators(plugin, instances.of(KnowsAccelerators)):
        yield (
            f"plugin {plugin.name!r} names accelerator {name!r}, but there is neither an AcceleratorClass nor a "
            "product of that name: the name has no effect"
        )


def _of_selections(plugin: Plugin[Any], instances: Instances) -> Iterator[str]:
    """Warn about selections that no filter or scorer reads, and about objects without a producer of selections."""
    if isinstance(plugin, MakesSelections):
        made = tuple(plugin.selections)
        filters = (datum for each in instances.of(Filter) for datum in (*each.reads, *each.may_read))
        if any(each.has_bounds for each in made) and ACCELERATOR_SELECTION not in filters:
            yield f"plugin {plugin.name!r} has bounds that no filter reads: add accelerator-filter to the profiles"
        scorers = (datum for each in instances.of(Scorer) for datum in each.reads)
        if any(each.policy or each.preference_order for each in made) and ACCELERATOR_SELECTION not in scorers:
            yield (
                f"plugin {plugin.name!r} has policies or preferred classes that no scorer reads: add "
                "accelerator-policy-scorer to the profiles"
            )
    elif isinstance(plugin, KnowsAccelerators) and plugin.selectors:
        makers = (each for each in instances if isinstance(each, MakesSelections))
        if all(made == ANY for each in makers for made in each.selections):
            yield (
                f"plugin {plugin.name!r} reads {plugin.selectors[0]}, which selects accelerators without effect: add "
                "accelerator-selection-producer with the same paths"
            )


def _of_profile(profile: Profile, instances: Instances) -> Iterator[str]:
    where = f"profile {profile.name!r}"
    weighted_scorers = [weighted for weighted in profile.scorers if weighted.weight]
    if weighted_scorers and all(weighted.scorer.category is Category.AFFINITY for weighted in weighted_scorers):
        names = ", ".join(weighted.scorer.name for weighted in weighted_scorers)
        yield f"{where} has affinity scorers only ({names}): nothing limits the load of a popular endpoint"
    for weighted in profile.scorers:
        if not weighted.weight:
            yield f"{where}: scorer {weighted.scorer.name!r} has weight 0 and no effect: remove it, or set a weight"
    for member in profile.filters:
        cause = member.filter.drops
        if cause in profile.fail_open or instances.gives(member.filter, "fallbackOnEmpty"):
            continue
        if member.filter.may_empty:
            status = profile.constraint_status if cause is DropCause.CONSTRAINT else _STATUS.get(cause, 429)
            yield (
                f"{where}: filter {member.filter.name!r} may drop all candidates, and then the request is refused with "
                f"{status}: set fallbackOnEmpty to true to use any endpoint instead, or to false to confirm"
            )
    yield from _same_measure(where, [weighted.scorer for weighted in weighted_scorers])


def _of_flow_control(settings: FlowControlSettings | None, feeds: Sequence[Feed]) -> Iterator[str]:
    """Warn about flow control without data on load, or with a priority that is never admitted."""
    if settings is None:
        return
    detector, usage = settings.detector, settings.usage_limits
    if METRICS_AT in detector.reads and not any(feed.extractors for feed in feeds):
        yield (
            f"detector {detector.name!r} only sees this picker's own requests, because no data source of this "
            "configuration collects metrics: name a concurrency-detector, or add a data source"
        )
    try:
        ceilings = ceilings_at(settings, 0.0)
    except ConfigurationError as error:
        yield f"usage limits {usage.name!r} failed on the priorities of this file: {error}"
        return
    closed = [str(priority) for priority, ceiling in ceilings.items() if not ceiling > 0]
    if closed:
        yield (
            f"usage limits {usage.name!r} admit no request of priority {', '.join(closed)}, even to an idle "
            "endpoint: they wait until they are refused"
        )


def _same_measure(where: str, scorers: Sequence[Scorer[Any]]) -> Iterator[str]:
    for name, count in Counter(scorer.name for scorer in scorers).items():
        if count > 1:
            yield f"{where}: scorer {name!r} is listed {count} times: add up the weights"
    measures: dict[tuple[object, ...], Scorer[Any]] = {}
    for scorer in scorers:
        measure = (scorer.category, frozenset(scorer.reads))
        other = measures.setdefault(measure, scorer)
        is_ambiguous = all(isinstance(datum, Attribute) for datum in scorer.reads)  # a record has several values
        if not is_ambiguous and other is not scorer and other.name != scorer.name:
            data = ", ".join(sorted({datum.name for datum in scorer.reads}))
            yield f"{where}: {other.name!r} and {scorer.name!r} measure the same data ({data}), which counts twice"


def _never_collected(plugin: Plugin[Any], collected: set[str]) -> Iterator[str]:
    if all(role.role.stage is Stage.BACKGROUND for role in roles_of(type(plugin))):
        return
    for datum in plugin.reads:
        if isinstance(datum, (Column, Attribute)) and datum.name not in collected:
            yield (
                f"plugin {plugin.name!r} reads {datum.name!r}, and no data source of this configuration collects it: "
                "its values are unknown"
            )


def _never_read(plugin: Plugin[Any], read: set[Datum], needed: set[str]) -> Iterator[str]:
    """Warn about data published under the plugin's own name that no plugin reads under that name."""
    for datum in plugin.writes:
        if isinstance(datum, DataKey) and datum.producer and datum not in read and datum.name not in needed:
            yield (
                f"plugin {plugin.name!r} writes {datum.name!r} under its own name, and no plugin reads it: name it in "
                "the parameters of its readers, or remove its name"
            )
