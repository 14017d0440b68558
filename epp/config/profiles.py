# SPDX-License-Identifier: Apache-2.0
"""Builds the profiles, the profile picker and the aggregator of a configuration, and separates shadow profiles."""

from collections.abc import Collection, Mapping
from typing import Any

from epp.config.instances import Instances
from epp.config.model import DataLayer, EndpointPickerConfig, SchedulingProfile, WeightedRef
from epp.framework import roles
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import OnError, Plugin
from epp.framework.result import DropCause
from epp.framework.roles import Aggregator, Filter, Picker, Producer, ProfilePicker, Scorer, Shadowing
from epp.framework.suggestions import hint_at
from epp.routing.scheduling.profile import OnStale, Profile, ProfileFilter, Staleness, WeightedScorer

DEFAULT_PICKER = "max-score-picker"
DEFAULT_PROFILE_PICKER = "single-profile-handler"
DEFAULT_AGGREGATOR = "first-result-aggregator"
_ALWAYS_ACTIVE = (roles.RequestHeaders, roles.Screener, roles.Admitter, roles.ResponseHeaders, roles.ResponseReporter)
"""Roles that run for every request, wherever the plugin is named, with effects on clients or gateways."""


def build_profiles(config: EndpointPickerConfig, instances: Instances) -> dict[str, Profile | None]:
    """Return the profiles in the order of the file, or one with all plugins; None for a profile with problems."""
    profiles: dict[str, Profile | None] = {}
    if config.data_layer.on_stale is not None and config.data_layer.stale_after is None:
        instances.warn("has no effect: set staleAfter as well", "dataLayer", "onStale")
    specs = config.scheduling_profiles
    if not specs:
        refs = [{"pluginRef": plugin.name} for plugin in instances if isinstance(plugin, Filter | Scorer | Picker)]
        specs = [SchedulingProfile.model_validate({"name": "default", "plugins": refs})]
    for index, spec in enumerate(specs):
        if spec.name in profiles:
            remedy = "give one of them another name"
            instances.fail(f"two profiles are named {spec.name!r}", "schedulingProfiles", index, remedy=remedy)
        profiles[spec.name] = _ProfileBuilder(spec, index, instances, config.data_layer).build()
    return profiles


def choose_profile_picker(profiles: Collection[str], instances: Instances) -> ProfilePicker[Any]:
    """Return the declared profile picker, or the default one for a single profile; raises ConfigurationError."""
    declared = instances.of(ProfilePicker)
    if len(declared) > 1:
        both = f"{declared[0].name!r} and {declared[1].name!r}"
        raise ConfigurationError(f"two profile pickers, {both}", remedy="keep one")
    if not declared and len(profiles) > 1:
        remedy = "add a profile picker to plugins, such as disagg-profile-handler, or keep one profile"
        raise ConfigurationError(f"{len(profiles)} profiles and no profile picker to choose among them", remedy=remedy)
    handler = declared[0] if declared else instances.ensure(DEFAULT_PROFILE_PICKER, ProfilePicker, "one profile")
    try:
        for warning in handler.check_profiles(tuple(profiles)):
            instances.warn(f"plugin {handler.name!r}: {warning}", *instances.path_of(handler))
    except ValueError as error:
        raise ConfigurationError(f"plugin {handler.name!r}: {error}") from error
    return handler


def choose_aggregator(handler: ProfilePicker[Any] | None, instances: Instances) -> Aggregator[Any] | None:
    """Return the declared aggregator, or the profile picker if it is one, or the default one.

    None if there is no profile picker; raises ConfigurationError.
    """
    declared = [plugin for plugin in instances.of(Aggregator) if not isinstance(plugin, ProfilePicker)]
    if len(declared) > 1:
        both = f"{declared[0].name!r} and {declared[1].name!r}"
        raise ConfigurationError(f"two aggregators, {both}", remedy="keep one")
    if declared:
        return declared[0]
    if handler is None or isinstance(handler, Aggregator):
        return handler
    return instances.ensure(DEFAULT_AGGREGATOR, Aggregator, f"{handler.name} is not an aggregator")


def names_no_picker(profile: str) -> str:
    """Return the reason for an added picker."""
    return f"profile {profile!r} names no picker"


class _ProfileBuilder:
    """Collects the plugins of one profile."""

    def __init__(self, spec: SchedulingProfile, index: int, instances: Instances, layer: DataLayer) -> None:
        self._spec = spec
        self._index = index
        self._instances = instances
        self._layer = layer
        self._filters: list[ProfileFilter] = []
        self._scorers: list[WeightedScorer] = []
        self._pickers: list[Picker[Any]] = []

    def build(self) -> Profile | None:
        for index, ref in enumerate(self._spec.plugins):
            path = ("schedulingProfiles", self._index, "plugins", index)
            if (kind := self._instances.inactive.get(ref.plugin_ref)) is not None:
                self._warn_without_role(ref, kind, *path)
                continue
            plugin = self._instances.resolve(ref, Plugin, *path)
            if isinstance(plugin, (Filter, Scorer, Picker)):
                if self._fits(plugin, ref, *path):
                    self._add(plugin, ref, *path)
            elif plugin is not None and not isinstance(plugin, Producer):
                # no warning for a producer: llm-d's charts name them, and they run in any case
                self._warn_without_role(ref, plugin.plugin_type, *path)
        if (picker := self._instances.attempt(self._picker, "schedulingProfiles")) is None:
            return None
        causes = self._spec.fail_open
        drops_stale = _rule(self._layer.on_stale) is OnStale.DROP
        return Profile(
            self._spec.name,
            tuple(self._filters),
            tuple(self._scorers),
            picker,
            drop_stale_after_seconds=self._layer.stale_after if drops_stale else None,
            fail_open=frozenset(DropCause if causes is True else map(DropCause, causes or ())),
            constraint_status=self._spec.constraint_status,
        )

    def _fits(self, plugin: Plugin[Any], ref: WeightedRef, *path: str | int) -> bool:
        """Whether a plugin fits the reference; records the problems."""
        fail, before = self._instances.fail, len(self._instances.problems)
        if ref.weight is not None and not isinstance(plugin, Scorer):
            self._instances.warn(f"has no effect: {ref.plugin_ref!r} is not a scorer", *path, "weight")
        elif ref.weight is not None and ref.weight < 0:
            signed = "weight" in plugin.parameters.__struct_fields__
            remedy = f"write weight: {ref.weight:g} among the parameters of the plugin" if signed else ""
            problem = f"weight {ref.weight:g} is negative, but scorers rate the better endpoints higher"
            fail(problem, *path, "weight", remedy=remedy)
        if ref.on_stale is not None and ref.stale_after is None and self._layer.stale_after is None:
            fail("needs an age", *path, "onStale", remedy="set staleAfter here, or in dataLayer")
        if _rule(ref.on_stale) is OnStale.DROP and not isinstance(plugin, Filter):
            remedy = "use Neutral here, or Drop for a filter or in dataLayer"
            fail(f"{ref.plugin_ref!r} drops no endpoints", *path, "onStale", remedy=remedy)
        if isinstance(plugin, Picker):
            if ref.stale_after is not None:
                self._instances.warn(f"has no effect: {ref.plugin_ref!r} is a picker", *path, "staleAfter")
            if ref.on_error == "Skip":
                fail(f"{ref.plugin_ref!r} is the picker: without it nothing is picked", *path, "onError")
            if self._pickers:
                both = f"{self._pickers[0].name!r} and {ref.plugin_ref!r}"
                fail(f"two pickers, {both}", *path, remedy="keep one")
            self._pickers.append(plugin)
        return len(self._instances.problems) == before

    def _add(self, plugin: Plugin[Any], ref: WeightedRef, *path: str | int) -> None:
        policy, staleness = OnError(ref.on_error) if ref.on_error else None, self._staleness(ref)
        if isinstance(plugin, Filter) and not plugin.keeps_all:
            self._filters.append(ProfileFilter.of(plugin, policy, staleness))
        if isinstance(plugin, Scorer):
            try:
                weight = plugin.default_weight if ref.weight is None else ref.weight
                self._scorers.append(WeightedScorer.of(plugin, weight, policy, staleness))
            except ValueError as error:
                self._instances.fail(str(error), *path, "weight")

    def _staleness(self, ref: WeightedRef) -> Staleness | None:
        """Return the view of stale endpoints for a plugin; None if dataLayer drops them."""
        after = ref.stale_after or self._layer.stale_after
        general, own = _rule(self._layer.on_stale) or OnStale.NEUTRAL, _rule(ref.on_stale)
        if after is None or (general is OnStale.DROP and own is None and ref.stale_after is None):
            return None
        return Staleness(after, own or (general if ref.stale_after is None else OnStale.NEUTRAL))

    def _warn_without_role(self, ref: WeightedRef, kind: str, *path: str | int) -> None:
        problem = "is not a filter, scorer or picker: it has no effect in a profile"
        self._instances.warn(f"plugin {ref.plugin_ref!r} (type {kind}) {problem}", *path)

    def _picker(self) -> Picker[Any]:
        if found := self._pickers or self._instances.of(Picker):
            return found[0]
        return self._instances.ensure(DEFAULT_PICKER, Picker, names_no_picker(self._spec.name))


def _rule(written: str | None) -> OnStale | None:
    return None if written is None else OnStale(written)


def divide_profiles(
    built: Mapping[str, Profile | None], instances: Instances
) -> tuple[dict[str, Profile | None], dict[str, Profile]]:
    """Return the deciding profiles and the shadows; records a problem for each unknown name.

    Profiles that could not be built are None, and omitted from the shadows.
    """
    plugins = instances.of(Shadowing)
    for other in plugins[1:]:
        both = f"{plugins[0].name!r} and {other.name!r}"
        instances.fail(f"two plugins name shadow profiles, {both}", *instances.path_of(other), remedy="keep one")
    if not plugins:
        return dict(built), {}
    plugin = plugins[0]
    names = plugin.shadow_profiles
    for index, name in enumerate(names):
        if name not in built:
            path = (*instances.path_of(plugin), "parameters", "profiles", index)
            instances.fail(f"no profile is named {name!r}", *path, remedy=hint_at(name, built))
    deciding = {name: profile for name, profile in built.items() if name not in names}
    if not deciding:
        problem = f"plugin {plugin.name!r} names all profiles as shadows: one must decide"
        remedy = "leave one out of its parameter profiles"
        instances.fail(problem, *instances.path_of(plugin), "parameters", "profiles", remedy=remedy)
        return dict([*built.items()][:1]), {}
    found = {name: profile for name in names if (profile := built.get(name)) is not None}
    return deciding, found


def check_shadows(
    config: EndpointPickerConfig, deciding: Mapping[str, Profile], shadows: Mapping[str, Profile], instances: Instances
) -> None:
    """Warn about plugins that only shadow profiles name, although they affect every request."""
    if not shadows:
        return
    _check_pickers(config, deciding, shadows, instances)
    used = {plugin.name for profile in deciding.values() for plugin in plugins_of(profile)}
    used |= {name for plugin in instances for name in plugin.references.values()}
    warned: set[str] = set()
    for profile in shadows.values():
        for plugin in plugins_of(profile):
            title = next((role.role.title.lower() for role in _ALWAYS_ACTIVE if isinstance(plugin, role)), "")
            if title and plugin.name not in used and plugin.name not in warned:
                warned.add(plugin.name)
                problem = f"plugin {plugin.name!r} is named only by the shadow profile {profile.name!r}"
                instances.warn(f"{problem}, but affects every request ({title})", *instances.path_of(plugin))


def _check_pickers(
    config: EndpointPickerConfig, deciding: Mapping[str, Profile], shadows: Mapping[str, Profile], instances: Instances
) -> None:
    """Warn about profiles without a picker that use the one of a shadow, because the file declares it first."""
    named = {spec.name: {ref.plugin_ref for ref in spec.plugins} for spec in config.scheduling_profiles}
    of_shadows = {name for shadow in shadows for name in named.get(shadow, ())}
    for index, spec in enumerate(config.scheduling_profiles):
        profile = deciding.get(spec.name)
        picker = "" if profile is None else profile.picker.name
        if picker in of_shadows - named[spec.name]:
            problem = f"profile {spec.name!r} names no picker and uses {picker!r} of a shadow profile: name one in both"
            instances.warn(problem, "schedulingProfiles", index)


def plugins_of(profile: Profile) -> list[Plugin[Any]]:
    return [*(each.filter for each in profile.filters), *(each.scorer for each in profile.scorers), profile.picker]
