"""Turns a configuration into plugin instances: fills in what it leaves out, wires what belongs together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

from epp.config.model import EndpointPickerConfig, PluginRef, SchedulingProfile
from epp.director import ParserTable, Pipeline
from epp.framework.clock import Clock
from epp.framework.datalayer import DataSource, Discovery, Extractor, Feed
from epp.framework.errors import ConfigurationError
from epp.framework.hooks import (
    Admitter,
    EndpointObserver,
    PreRequest,
    Producer,
    RequestHeaders,
    ResponseHeaders,
    ResponseReporter,
)
from epp.framework.plugins import Aggregator, Filter, Parser, Picker, Plugin, ProfilePicker, Scorer
from epp.framework.registry import Registry
from epp.framework.request import DataKey
from epp.scheduling import OnError, Profile, ProfileFilter, Scheduler, SchedulingObserver, WeightedScorer

_Role = TypeVar("_Role", bound=Plugin[Any])

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
DEFAULT_PICKER = "max-score-picker"
DEFAULT_PROFILE_PICKER = "single-profile-handler"
METRICS_SOURCE = "metrics-data-source"
METRICS_EXTRACTOR = "core-metrics-extractor"


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that one configuration brings to life."""

    pipeline: Pipeline
    feeds: tuple[Feed, ...]
    discovery: Discovery[Any] | None
    plugins: tuple[Plugin[Any], ...]
    """All instances, those the file names first, then the implied ones."""


def assemble(
    config: EndpointPickerConfig, registry: Registry, clock: Clock, *, observer: SchedulingObserver | None = None
) -> Assembly:
    """Build all plugins of a configuration; raises ConfigurationError that names the plugin or profile at fault."""
    return _Assembler(config, registry, clock).run(observer or SchedulingObserver())


class _Assembler:
    def __init__(self, config: EndpointPickerConfig, registry: Registry, clock: Clock) -> None:
        self._config = config
        self._registry = registry
        self._clock = clock
        self._instances: dict[str, Plugin[Any]] = {}

    def run(self, observer: SchedulingObserver) -> Assembly:
        for spec in self._config.plugins:
            if spec.instance_name in self._instances:
                raise ConfigurationError(f"two plugins are named {spec.instance_name!r}: give one of them another name")
            self._add(spec.type, spec.instance_name, spec.parameters)
        profiles = self._profiles()
        handler = self._profile_picker(profiles)
        parsers = self._parsers()
        feeds = self._feeds()
        discovery = self._config.data_layer.discovery
        self._add_missing_producers()
        return Assembly(
            pipeline=Pipeline(
                parsers=ParserTable(parsers),
                scheduler=Scheduler(profiles, handler, _aggregator(handler), observer=observer),
                request_headers=self._of(RequestHeaders),
                producers=_in_order(self._of(Producer)),
                admitters=self._of(Admitter),
                pre_request=self._of(PreRequest),
                response_headers=self._of(ResponseHeaders),
                reporters=self._of(ResponseReporter),
                endpoint_observers=self._of(EndpointObserver),
            ),
            feeds=feeds,
            discovery=self._resolve(discovery, Discovery, "dataLayer.discovery") if discovery else None,
            plugins=tuple(self._instances.values()),
        )

    def _add(self, type_name: str, name: str, parameters: dict[str, Any]) -> Plugin[Any]:
        plugin = self._registry.build(type_name, parameters, name=name, clock=self._clock)
        self._instances[name] = plugin
        return plugin

    def _ensure(self, type_name: str, role: type[_Role]) -> _Role:
        """Return the first instance of that type, or a new one with defaults."""
        same_type = (plugin for plugin in self._instances.values() if plugin.plugin_type == type_name)
        plugin = next(same_type, None) or self._add(type_name, type_name, {})
        if not isinstance(plugin, role):
            raise ConfigurationError(f"plugin {plugin.name!r} (type {type_name}) is no {role.__name__}")
        return plugin

    def _of(self, role: type[_Role]) -> tuple[_Role, ...]:
        return tuple(plugin for plugin in self._instances.values() if isinstance(plugin, role))

    def _resolve(self, ref: PluginRef, role: type[_Role], place: str) -> _Role:
        plugin = self._instances.get(ref.plugin_ref)
        if plugin is None:
            raise ConfigurationError(
                f"{place}: no plugin is named {ref.plugin_ref!r}; declared are {', '.join(self._instances) or 'none'}"
            )
        if not isinstance(plugin, role):
            raise ConfigurationError(f"{place}: plugin {ref.plugin_ref!r} is no {role.__name__}")
        return plugin

    def _profiles(self) -> dict[str, Profile]:
        written = self._config.scheduling_profiles or [self._implied_profile()]
        profiles: dict[str, Profile] = {}
        for index, spec in enumerate(written):
            if spec.name in profiles:
                raise ConfigurationError(f"schedulingProfiles[{index}]: two profiles are named {spec.name!r}")
            profiles[spec.name] = self._profile(spec, f"schedulingProfiles[{index}] ({spec.name})")
        return profiles

    def _implied_profile(self) -> SchedulingProfile:
        roles = (Filter, Scorer, Picker)
        refs = [{"pluginRef": name} for name, plugin in self._instances.items() if isinstance(plugin, roles)]
        return SchedulingProfile.model_validate({"name": "default", "plugins": refs})

    def _profile(self, spec: SchedulingProfile, place: str) -> Profile:
        filters: list[ProfileFilter] = []
        scorers: list[WeightedScorer] = []
        pickers: list[Picker[Any]] = []
        for ref in spec.plugins:
            plugin = self._resolve(ref, Plugin, place)
            if isinstance(plugin, Filter):
                filters.append(ProfileFilter(plugin, ref.on_error or OnError.FAIL))
            if isinstance(plugin, Scorer):
                try:
                    scorers.append(
                        WeightedScorer(plugin, 1.0 if ref.weight is None else ref.weight, ref.on_error or OnError.SKIP)
                    )
                except ValueError as error:
                    raise ConfigurationError(f"{place}: {error}") from error
            elif ref.weight is not None:
                raise ConfigurationError(f"{place}: {ref.plugin_ref!r} has a weight, but is no scorer")
            if isinstance(plugin, Picker):
                pickers.append(plugin)
            if not isinstance(plugin, (Filter, Scorer, Picker)):
                raise ConfigurationError(f"{place}: {ref.plugin_ref!r} is neither filter, scorer nor picker")
        if len(pickers) > 1:
            raise ConfigurationError(f"{place}: two pickers, {pickers[0].name!r} and {pickers[1].name!r}: keep one")
        picker = pickers[0] if pickers else self._default_picker()
        return Profile(spec.name, tuple(filters), tuple(scorers), picker)

    def _default_picker(self) -> Picker[Any]:
        declared = self._of(Picker)
        return declared[0] if declared else self._ensure(DEFAULT_PICKER, Picker)

    def _profile_picker(self, profiles: dict[str, Profile]) -> ProfilePicker[Any]:
        declared = self._of(ProfilePicker)
        if len(declared) > 1:
            raise ConfigurationError(f"two profile pickers, {declared[0].name!r} and {declared[1].name!r}: keep one")
        if not declared and len(profiles) > 1:
            raise ConfigurationError(f"{len(profiles)} profiles and no profile picker to choose among them")
        handler = declared[0] if declared else self._ensure(DEFAULT_PROFILE_PICKER, ProfilePicker)
        if handler.plugin_type == DEFAULT_PROFILE_PICKER and len(profiles) != 1:
            raise ConfigurationError(f"{DEFAULT_PROFILE_PICKER} takes one profile, not {len(profiles)}")
        return handler

    def _parsers(self) -> Sequence[Parser[Any]]:
        refs = self._config.request_handler.parsers
        if refs:
            return [self._resolve(ref, Parser, f"requestHandler.parsers[{index}]") for index, ref in enumerate(refs)]
        return [self._ensure(type_name, Parser) for type_name in DEFAULT_PARSERS]

    def _feeds(self) -> tuple[Feed, ...]:
        layer = self._config.data_layer
        feeds: list[Feed] = []
        for index, spec in enumerate(layer.sources):
            place = f"dataLayer.sources[{index}]"
            source = self._resolve(spec, DataSource, place)
            extractors = [self._resolve(ref, Extractor, f"{place}.extractors") for ref in spec.extractors]
            feeds.append(Feed(source, tuple(extractors)))
        scraped = any(feed.source.plugin_type == METRICS_SOURCE for feed in feeds)
        if layer.inject_defaults and not scraped:
            source = self._ensure(METRICS_SOURCE, DataSource)
            feeds.append(Feed(source, (self._ensure(METRICS_EXTRACTOR, Extractor),)))
        return tuple(feeds)

    def _add_missing_producers(self) -> None:
        """Instantiate the default producer of every key that is read and not written, until all are."""
        while True:
            written = {key for plugin in self._instances.values() for key in plugin.writes}
            missing = [
                (plugin, key)
                for plugin in self._instances.values()
                for key in plugin.reads
                if isinstance(key, DataKey) and key not in written
            ]
            if not missing:
                return
            reader, key = missing[0]
            if key.producer:
                raise ConfigurationError(
                    f"plugin {reader.name!r} reads {key.name!r} from producer {key.producer!r}, which is not declared"
                )
            self._add(key.default_producer, key.default_producer, {})


def _aggregator(handler: ProfilePicker[Any]) -> Aggregator[Any]:
    if not isinstance(handler, Aggregator):
        raise ConfigurationError(f"profile picker {handler.name!r} does not aggregate results")
    return handler


def _in_order(producers: Iterable[Producer[Any]]) -> tuple[Producer[Any], ...]:
    """Sort so that each producer comes after those whose data it reads; otherwise in the order of declaration."""
    declared = tuple(producers)
    writers = {key: producer for producer in declared for key in producer.writes}
    sorter: TopologicalSorter[Producer[Any]] = TopologicalSorter()
    for producer in declared:
        sorter.add(producer, *(writers[key] for key in producer.reads if isinstance(key, DataKey) and key in writers))
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        names = " -> ".join(producer.name for producer in error.args[1])
        raise ConfigurationError(f"producers read each other's data in a circle: {names}") from error
