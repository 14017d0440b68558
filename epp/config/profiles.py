# SPDX-License-Identifier: Apache-2.0
"""Builds the profiles, the profile picker and the aggregator of a configuration."""

from typing import Any

from epp.config.instances import Instances
from epp.config.model import EndpointPickerConfig, SchedulingProfile, WeightedRef
from epp.config.upstream import FLOW_CONTROL_TYPES, WITHOUT_TASK
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import OnError, Plugin
from epp.framework.roles import Aggregator, Filter, Picker, ProfilePicker, Scorer
from epp.scheduling import Profile, ProfileFilter, WeightedScorer

DEFAULT_PICKER = "max-score-picker"
DEFAULT_PROFILE_PICKER = "single-profile-handler"
DEFAULT_AGGREGATOR = "first-result-aggregator"


def build_profiles(config: EndpointPickerConfig, instances: Instances) -> dict[str, Profile]:
    """Return the profiles in the order of the file; one of everything where it has none."""
    profiles: dict[str, Profile] = {}
    for index, spec in enumerate(config.scheduling_profiles or [_implied_profile(instances)]):
        if spec.name in profiles:
            instances.fail(f"two profiles are named {spec.name!r}", "schedulingProfiles", index)
        profiles[spec.name] = _Parts(spec, index, instances).profile()
    return profiles


def choose_profile_picker(profiles: dict[str, Profile], instances: Instances) -> ProfilePicker[Any] | None:
    """Return the one that the file declares, or the one that runs a single profile; raises ConfigurationError.

    None where the file declares one that could not be built.
    """
    declared = instances.of(ProfilePicker)
    if not declared and instances.may_lack(ProfilePicker):
        return None
    if len(declared) > 1:
        raise ConfigurationError(f"two profile pickers, {declared[0].name!r} and {declared[1].name!r}: keep one")
    if not declared and len(profiles) > 1:
        raise ConfigurationError(f"{len(profiles)} profiles and no profile picker to choose among them")
    handler = declared[0] if declared else instances.ensure(DEFAULT_PROFILE_PICKER, ProfilePicker, "one profile")
    try:
        for warning in handler.check_profiles(tuple(profiles)):
            instances.warn(f"plugin {handler.name!r}: {warning}", *instances.path_of(handler))
    except ValueError as error:
        raise ConfigurationError(f"plugin {handler.name!r}: {error}") from error
    return handler


def choose_aggregator(handler: ProfilePicker[Any], instances: Instances) -> Aggregator[Any]:
    """Return the aggregator that the file declares, else the profile picker if it is one, else the default one.

    Raises ConfigurationError.
    """
    declared = [plugin for plugin in instances.of(Aggregator) if not isinstance(plugin, ProfilePicker)]
    if len(declared) > 1:
        raise ConfigurationError(f"two aggregators, {declared[0].name!r} and {declared[1].name!r}: keep one")
    if declared:
        return declared[0]
    if isinstance(handler, Aggregator):
        return handler
    return instances.ensure(DEFAULT_AGGREGATOR, Aggregator, f"{handler.name} is no aggregator")


def _implied_profile(instances: Instances) -> SchedulingProfile:
    roles = (Filter, Scorer, Picker)
    refs = [{"pluginRef": name} for name, plugin in instances.by_name.items() if isinstance(plugin, roles)]
    return SchedulingProfile.model_validate({"name": "default", "plugins": refs})


class _Parts:
    """Gathers what one profile refers to."""

    def __init__(self, spec: SchedulingProfile, index: int, instances: Instances) -> None:
        self._spec = spec
        self._index = index
        self._instances = instances
        self._filters: list[ProfileFilter] = []
        self._scorers: list[WeightedScorer] = []
        self._pickers: list[Picker[Any]] = []

    def profile(self) -> Profile:
        for index, ref in enumerate(self._spec.plugins):
            path = ("schedulingProfiles", self._index, "plugins", index)
            kind = self._instances.inactive.get(ref.plugin_ref, "")
            if kind in FLOW_CONTROL_TYPES or kind in WITHOUT_TASK:
                self._pass_over(ref, kind, *path)
            elif (plugin := self._instances.resolve(ref, Plugin, *path)) is not None:
                self._add(plugin, ref, *path)
        return Profile(self._spec.name, tuple(self._filters), tuple(self._scorers), self._picker())

    def _add(self, plugin: Plugin[Any], ref: WeightedRef, *path: str | int) -> None:
        fail = self._instances.fail
        if not isinstance(plugin, (Filter, Scorer, Picker)):
            self._pass_over(ref, plugin.plugin_type, *path)
            return
        if isinstance(plugin, Filter):
            self._filters.append(ProfileFilter.of(plugin, _policy(ref)))
        if isinstance(plugin, Scorer):
            self._add_scorer(plugin, ref, *path)
        elif ref.weight is not None:
            self._instances.warn(f"has no effect: {ref.plugin_ref!r} is no scorer", *path, "weight")
        if isinstance(plugin, Picker):
            if ref.on_error == "Skip":
                fail(f"{ref.plugin_ref!r} is the picker: without it nothing is picked", *path, "onError")
            if self._pickers:
                fail(f"two pickers, {self._pickers[0].name!r} and {plugin.name!r}: keep one", *path)
            self._pickers.append(plugin)

    def _pass_over(self, ref: WeightedRef, kind: str, *path: str | int) -> None:
        """Warn of a plugin that has no part in a profile; llm-d's charts name producers there."""
        self._instances.warn(
            f"plugin {ref.plugin_ref!r} (type {kind}) is neither filter, scorer nor picker: it has no effect in a "
            "profile",
            *path,
        )

    def _add_scorer(self, scorer: Scorer[Any], ref: WeightedRef, *path: str | int) -> None:
        weight = 1.0 if ref.weight is None else ref.weight
        if weight < 0:
            self._instances.fail(f"weight {weight:g} is negative: a scorer says what is good", *path, "weight")
            return
        try:
            self._scorers.append(WeightedScorer.of(scorer, weight, _policy(ref)))
        except ValueError as error:
            self._instances.fail(str(error), *path, "weight")

    def _picker(self) -> Picker[Any]:
        if self._pickers:
            return self._pickers[0]
        declared = self._instances.of(Picker)
        why = f"profile {self._spec.name!r} names no picker"
        return declared[0] if declared else self._instances.ensure(DEFAULT_PICKER, Picker, why)


def _policy(ref: WeightedRef) -> OnError | None:
    return OnError(ref.on_error) if ref.on_error else None
