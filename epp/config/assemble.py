# SPDX-License-Identifier: Apache-2.0
"""Turns a configuration into plugin instances: adds defaults and connects them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from epp.config import wiring
from epp.config.document import Path, Problem, in_order_of_the_file
from epp.config.flow_control import AdmissionSettings, build_admission
from epp.config.instances import Builder, Instances
from epp.config.lint import lint, refuse_unknown_accelerators
from epp.config.load import LoadedConfig
from epp.config.model import API_VERSION, LEGACY_API_VERSION, EndpointPickerConfig, PluginRef
from epp.config.probe import SLOW_SECONDS, TIME_LIMIT_SECONDS, Findings, in_time, rehearse, rehearse_scheduling
from epp.config.profiles import build_profiles, check_shadows, choose_aggregator, choose_profile_picker, divide_profiles
from epp.framework.cluster_objects import ObjectReader, Reading
from epp.framework.datalayer import Discovery, EndpointSource, Feed, Tagger
from epp.framework.headers import RESERVED
from epp.framework.plugin import Plugin, SchedulingObserver, all_roles
from epp.framework.quotas import QuotaSource
from epp.framework.roles import Admitter, Parser, Producer, RequestHeaders, ResponseReporter, ResponseTiming
from epp.framework.snapshot import IN_FLIGHT_TOKENS
from epp.framework.suggestions import hint_at
from epp.routing.director import ParserTable, Pipeline, ResponseNeeds
from epp.routing.scheduling.scheduler import Scheduler

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2

FLOW_CONTROL = "flowControl"
FEATURE_GATES = (FLOW_CONTROL, "haPopulateNonLeaderDatastore")


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that one configuration defines."""

    loaded: LoadedConfig
    pipeline: Pipeline
    feeds: tuple[Feed, ...]
    taggers: tuple[Tagger[Any], ...]
    readings: tuple[Reading, ...]
    """All plugins that read objects of the cluster."""
    sources: tuple[EndpointSource, ...]
    """Sources of endpoints, in order of precedence."""
    instances: Instances
    warnings: tuple[Problem, ...]
    """Warnings for its author."""

    @property
    def discovery(self) -> Discovery[Any] | None:
        """The only source of endpoints; None if the file names none, or several."""
        return self.sources[0].plugin if len(self.sources) == 1 else None

    @property
    def plugins(self) -> tuple[Plugin[Any], ...]:
        """All instances: declared ones, then implied ones."""
        return tuple(self.instances.by_name.values())


def assemble(loaded: LoadedConfig, builder: Builder, *, observer: SchedulingObserver | None = None) -> Assembly:
    """Build all plugins of a configuration, and connect them.

    Raises InvalidConfigError with all problems of structure, types and parameters; if there are none, with all problems
    of references, profiles and the data layer. Then the new plugins read the object files of the builder, which may
    raise another ConfigurationError, and names of accelerators are checked against the objects.
    """
    instances = Instances(loaded, builder)
    for index, spec in loaded.readable_plugins.items() if loaded.problems else enumerate(loaded.model.plugins):
        instances.declare(spec, index)
    instances.raise_problems()  # from here on, each declared plugin exists
    instances.connect()
    built = build_profiles(loaded.model, instances)
    profiles, shadows = divide_profiles(built, instances)
    gates = _check_features(loaded.model, instances)
    admit = partial(build_admission, loaded.model, instances, is_on=gates.get(FLOW_CONTROL, False))
    admission = instances.attempt(admit, FLOW_CONTROL) or AdmissionSettings()
    parsers = instances.attempt(partial(_parsers, loaded, instances), "requestHandler") or ()
    layer = instances.attempt(partial(wiring.build_data_layer, loaded, instances), "dataLayer") or wiring.DataLayer()
    sources = wiring.choose_sources(loaded, instances)
    handler = instances.attempt(partial(choose_profile_picker, profiles, instances), "schedulingProfiles")
    aggregator = instances.attempt(partial(choose_aggregator, handler, instances), "plugins")
    wiring.add_missing_producers(instances)
    producers = instances.attempt(partial(wiring.in_order, instances.of(Producer)), "plugins") or ()
    of_headers = instances.attempt(partial(wiring.in_order, instances.of(RequestHeaders)), "plugins") or ()
    admitters = instances.attempt(partial(wiring.in_order, instances.of(Admitter)), "plugins") or ()
    wiring.check_order(instances)
    _rehearse(instances, builder)
    _check_headers(instances)
    instances.raise_problems()
    _read_object_files(instances, builder)
    refuse_unknown_accelerators(instances)
    instances.raise_problems()
    assert handler is not None  # noqa: S101  otherwise there is a problem
    assert aggregator is not None  # noqa: S101  the same
    complete = {name: profile for name, profile in profiles.items() if profile is not None}
    every = {name: profile for name, profile in built.items() if profile is not None}
    rounds = loaded.model.scheduling.max_iterations
    scheduler = Scheduler(complete, handler, aggregator, observer=observer, max_iterations=rounds)
    _rehearse_scheduling(instances, builder, scheduler)
    instances.raise_problems()
    check_shadows(loaded.model, complete, shadows, instances)
    found_by_lint = lint(loaded, every, layer.feeds, instances, admission.flow_control)
    return Assembly(
        loaded=loaded,
        pipeline=Pipeline(
            parsers=ParserTable(parsers),
            scheduler=scheduler,
            plugins={role: instances.of(role) for role in all_roles()}
            | {Producer: producers, RequestHeaders: of_headers, Admitter: admitters},
            sets_headers=frozenset(name for plugin in instances for name in plugin.sets_headers),
            response_needs=_response_needs(instances),
            flow_control=admission.flow_control,
            shedding=admission.shedding,
            shadows=shadows,
            propagates_priority=loaded.model.request_handler.propagate_priority
            or any(parser.propagates_priority for parser in parsers),
        ),
        feeds=layer.feeds,
        taggers=instances.of(Tagger),
        readings=wiring.readings_of(instances, layer),
        sources=sources,
        instances=instances,
        warnings=tuple(in_order_of_the_file([*instances.warnings, *found_by_lint])),
    )


def _read_object_files(instances: Instances, builder: Builder) -> None:
    for reader in instances.of(ObjectReader):
        if reader is not builder.previous.get(reader.name):
            any_pool = builder.any_pool_object_paths if reader.is_for_any_pool else ()
            reader.read_files(builder.object_paths or any_pool)


def _response_needs(instances: Instances) -> ResponseNeeds:
    timing, reporters = instances.of(ResponseTiming), instances.of(ResponseReporter)
    reading = [each for each in timing if each.reads_response_body]
    return ResponseNeeds(
        body=not all(each.only_streams for each in reading)
        or any(each.reads_response_body for each in reporters)
        or bool(instances.of(QuotaSource)),  # quotas need the token counts of model servers
        streams=bool(reading) or any(IN_FLIGHT_TOKENS in (*plugin.reads, *plugin.may_read) for plugin in instances),
    )


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


def _rehearse(instances: Instances, builder: Builder) -> None:
    """Try new plugins on made-up endpoints: refuse undeclared reads and unusable results, warn about other errors."""
    new = [each for each in instances if builder.previous.get(each.name) is not each]
    tried = [each for each in new if each.name not in instances.unconnected]
    found = in_time([partial(rehearse, plugin, builder.clock.now) for plugin in tried])
    for plugin, findings in zip(tried, found, strict=False):
        path, kind = instances.path_of(plugin), type(plugin).__name__
        for name in findings.undeclared:
            problem = f"plugin {plugin.name!r} reads {name!r} without declaring it"
            instances.fail(f"{problem}: add it to `reads` or `may_read` of {kind}", *path)
        _report(instances, plugin, findings)
        if findings.seconds >= SLOW_SECONDS:
            problem = f"plugin {plugin.name!r} takes {findings.seconds * 1e3:.0f} ms for a few made-up endpoints"
            remedy = "a whole decision should take less than 1 ms, without network, disk or sleep"
            instances.warn(f"{problem}, and every request waits for it: {remedy}", *path)
    if len(found) < len(tried):
        _fail_in_time(instances, tried[len(found)])


def _rehearse_scheduling(instances: Instances, builder: Builder, scheduler: Scheduler) -> None:
    """Try a new profile picker or aggregator with all profiles."""
    tried = {plugin.name: plugin for plugin in (scheduler.profile_picker, scheduler.aggregator)}
    if all(builder.previous.get(name) is plugin for name, plugin in tried.items()):
        return
    found = in_time([partial(rehearse_scheduling, scheduler)])
    if not found:
        _fail_in_time(instances, scheduler.profile_picker)
    for findings in found:
        for name, each in findings.items():
            _report(instances, tried[name], each)


def _report(instances: Instances, plugin: Plugin[Any], findings: Findings) -> None:
    path = instances.path_of(plugin)
    for problem in findings.unusable:
        instances.fail(f"plugin {plugin.name!r} {problem}", *path)
    for problem in findings.raised:
        instances.warn(f"plugin {plugin.name!r} failed on made-up endpoints: {problem}", *path)


def _fail_in_time(instances: Instances, plugin: Plugin[Any]) -> None:
    problem = (
        f"plugin {plugin.name!r} did not return within {TIME_LIMIT_SECONDS:g} s when it was tried on made-up endpoints"
    )
    remedy = f"look for an endless loop, a lock, network access or sleep in {type(plugin).__name__}"
    instances.fail(f"{problem}: {remedy}", *instances.path_of(plugin))


def _check_headers(instances: Instances) -> None:
    """Refuse declared headers that are reserved or not lower-case header names."""
    for plugin in instances:
        for name in plugin.sets_headers:
            if name in RESERVED or not _HEADER_NAME.fullmatch(name):
                why = "the picker sets itself" if name in RESERVED else "is not a lower-case header name"
                problem = f"plugin {plugin.name!r} sets header {name!r}, which {why}"
                remedy = f"change `sets_headers` of {type(plugin).__name__}"
                instances.fail(f"{problem}: {remedy}", *instances.path_of(plugin))


def _check_features(config: EndpointPickerConfig, instances: Instances) -> Mapping[str, bool]:
    """Return the state of each feature gate; warn about keys without effect."""
    if config.api_version == LEGACY_API_VERSION:
        instances.warn(f"{LEGACY_API_VERSION} is deprecated: write {API_VERSION}", "apiVersion")
    gates: dict[str, bool] = {}
    for index, text in enumerate(config.feature_gates):
        name, equals, value = text.partition("=")
        path = ("featureGates", index)
        if name not in FEATURE_GATES:
            instances.fail(f"feature gate {name!r} is not known", *path, remedy=hint_at(name, FEATURE_GATES))
        elif equals and value not in {"true", "false"}:
            instances.fail(f"feature gate {name!r} is {value!r}, which is neither true nor false", *path)
        gates[name] = value != "false"
    layer = config.data_layer
    idle: dict[Path, object] = {
        ("discovery", "peers"): getattr(layer.discovery, "peers", None),
        ("crossReplica",): layer.cross_replica,
        ("peerDiscovery",): layer.peer_discovery,
        ("crossReplicaSyncerPluginRef",): layer.cross_replica_syncer_plugin_ref,
        ("crossReplicaSyncInterval",): layer.cross_replica_sync_interval,
        ("crossReplicaPublishTimeout",): layer.cross_replica_publish_timeout,
    }
    for place, given in idle.items():
        if given:
            instances.warn("has no effect: replicas do not exchange data yet", "dataLayer", *place)
    return gates
