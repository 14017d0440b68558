# SPDX-License-Identifier: Apache-2.0
"""`flowControl`, the part of the file about queues in front of full endpoints."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple

from epp.admission.flow_control.in_flight_eviction import OWN_GRACE_SECONDS, REPORT_GRACE_SECONDS, EvictionSettings
from epp.admission.flow_control.settings import BandSettings, FlowControlSettings, Limits
from epp.config.document import Path
from epp.config.instances import Instances, Role
from epp.config.model import BAND_BYTES, BAND_REQUESTS, EndpointPickerConfig, FlowControl, PriorityBandPolicies
from epp.framework.errors import ConfigurationError
from epp.framework.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.framework.messages import described
from epp.framework.plugin import Plugin
from epp.framework.roles import Filter

_ROLES = (SaturationDetector, UsageLimitPolicy, OrderingPolicy, FairnessPolicy)

_IMPLIED = frozenset(
    {"global-strict-fairness-policy", "fcfs-ordering-policy", "static-usage-limit-policy", "utilization-detector"}
)
"""Policies that a file may refer to without declaring them."""

_PLACE = "flowControl"
_OLD_PLACE = "saturationDetector"
_UNNAMED: Path = (_PLACE,)
"""Place in errors about a detector that the file does not name."""
_GATE_IS_OFF = "feature gate flowControl is off"


class AdmissionSettings(NamedTuple):
    """Settings for the admission of requests: admit, queue or refuse."""

    flow_control: FlowControlSettings | None = None
    """None if its gate is off or a problem was recorded."""
    shedding: SaturationDetector[Any] | None = None
    """The detector of the file for a pool without flow control."""


def build_admission(config: EndpointPickerConfig, instances: Instances, *, is_on: bool) -> AdmissionSettings:
    """Return the settings of flow control, or only the detector if the gate is off.

    Warns about settings without effect. Raises ConfigurationError if an implied policy cannot be built.
    """
    given = config.flow_control or FlowControl()
    policies = _Policies(instances, given, may_add=is_on)
    name, where = _detector(config, given)
    detector = policies.find(name, where, SaturationDetector, may_add=is_on or where != _UNNAMED)
    usage = policies.find(given.usage_limit_policy_plugin_ref, (_PLACE, "usageLimitPolicyPluginRef"), UsageLimitPolicy)
    default = policies.band(given.default_priority_band or PriorityBandPolicies(), "defaultPriorityBand")
    negative = default
    if given.default_negative_priority_band is not None:
        negative = policies.band(given.default_negative_priority_band, "defaultNegativePriorityBand")
    bands = _bands(given, policies, instances)
    _warn(config, instances, is_on=is_on)
    if not is_on:
        used = {} if detector is None else {detector.name: detector}
        _warn_of_idle_plugins(config, instances, used, _GATE_IS_OFF)
        _warn_of_idle_eviction(instances, _GATE_IS_OFF)
        return AdmissionSettings(shedding=detector)
    if detector is None or usage is None or default is None or negative is None or bands is None:
        return AdmissionSettings()
    _warn_of_idle_plugins(config, instances, policies.found, "flowControl does not name it")
    ttl, empty = given.default_request_ttl, given.no_endpoint_request_ttl
    settings = FlowControlSettings(
        detector=detector,
        usage_limits=usage,
        default_band=default,
        negative_band=negative,
        bands=bands,
        limits=Limits(given.max_requests, given.max_bytes),
        no_endpoint_ttl_seconds=(ttl if empty is None else empty) or inf,
        eviction=_eviction(given, instances, detector),
    )
    return AdmissionSettings(settings)


def _eviction(given: FlowControl, instances: Instances, detector: SaturationDetector[Any]) -> EvictionSettings | None:
    """Return the settings of eviction, with the policies of the file or the default ones."""
    if not given.enable_eviction:
        _warn_of_idle_eviction(instances, "flowControl.enableEviction is off")
        return None
    fits = _only(instances, EvictionFilter, "sheddable-eviction-filter")
    order = _only(instances, EvictionOrder, "priority-then-time-eviction-order-policy")
    if fits is None or order is None:
        return None
    return EvictionSettings(fits, order, OWN_GRACE_SECONDS if detector.counts_own_requests else REPORT_GRACE_SECONDS)


def _warn_of_idle_eviction(instances: Instances, why: str) -> None:
    for role in (EvictionFilter, EvictionOrder):
        for plugin in _declared(instances, role):
            instances.warn(f"plugin {plugin.name!r} has no effect: {why}", *instances.path_of(plugin))


def _only(instances: Instances, role: type[Role], usual: str) -> Role | None:
    """Return the plugin of a role that the file declares, or the default one; None if a problem was recorded."""
    declared = _declared(instances, role)
    if len(declared) > 1:
        names = ", ".join(repr(plugin.name) for plugin in declared)
        instances.fail(f"needs one {role.__name__}, not {names}", _PLACE, "enableEviction")
        return None
    if declared:
        return declared[0]
    default = partial(instances.ensure, usual, role, "flowControl.enableEviction")
    return instances.attempt(default, _PLACE, "enableEviction")


def _declared(instances: Instances, role: type[Role]) -> tuple[Role, ...]:
    return tuple(plugin for plugin in instances.of(role) if plugin.name not in instances.implied)


def _detector(config: EndpointPickerConfig, given: FlowControl) -> tuple[str, Path]:
    if given.saturation_detector is not None:
        return given.saturation_detector.plugin_ref, (_PLACE, "saturationDetector", "pluginRef")
    if config.saturation_detector is not None:
        return config.saturation_detector.plugin_ref, (_OLD_PLACE, "pluginRef")
    return "utilization-detector", _UNNAMED


def _warn(config: EndpointPickerConfig, instances: Instances, *, is_on: bool) -> None:
    """Warn about keys that are deprecated or have no effect, and limits of a priority that are never reached."""
    given = config.flow_control
    if config.saturation_detector is not None:
        is_twice = given is not None and given.saturation_detector is not None
        redundant = "has no effect besides flowControl.saturationDetector"
        instances.warn(redundant if is_twice else "is deprecated: write it into flowControl", _OLD_PLACE)
    if given is None:
        return
    if not is_on:
        if given.model_fields_set - {"saturation_detector"}:
            all_but = " but for saturationDetector" if given.saturation_detector is not None else ""
            instances.warn(f"has no effect{all_but}: {_GATE_IS_OFF}", _PLACE)
        return
    bands: dict[Path, PriorityBandPolicies | None] = {
        **{("priorityBands", index): band for index, band in enumerate(given.priority_bands)},
        ("defaultPriorityBand",): given.default_priority_band,
        ("defaultNegativePriorityBand",): given.default_negative_priority_band,
    }
    for place, limits in bands.items():
        for key, name in (("maxRequests", "max_requests"), ("maxBytes", "max_bytes")):
            own, common = getattr(limits, name, 0), getattr(given, name)
            if limits is not None and name in limits.model_fields_set and 0 < common < own:
                instances.warn(f"is {own}, but never reached: flowControl.{key} is {common}", _PLACE, *place, key)


def _warn_of_idle_plugins(
    config: EndpointPickerConfig, instances: Instances, used: Mapping[str, Plugin[Any]], why: str
) -> None:
    in_profiles = {ref.plugin_ref for profile in config.scheduling_profiles for ref in profile.plugins}
    for plugin in instances:
        is_filter = isinstance(plugin, Filter)
        filters = is_filter and (not config.scheduling_profiles or plugin.name in in_profiles)
        if isinstance(plugin, _ROLES) and plugin.name not in used and not filters:
            more = ", and no profile names it as a filter" if is_filter else ""
            problem = f"plugin {plugin.name!r} (type {plugin.plugin_type}) has no effect: {why}{more}"
            instances.warn(problem, *instances.path_of(plugin))


def _bands(given: FlowControl, policies: "_Policies", instances: Instances) -> Mapping[int, BandSettings] | None:
    """Return the bands of the file by priority; None if a problem was recorded."""
    counts = Counter(band.priority for band in given.priority_bands)
    bands: dict[int, BandSettings] = {}
    for index, band in enumerate(given.priority_bands):
        if counts[band.priority] > 1:
            instances.fail(f"two bands have priority {band.priority}", _PLACE, "priorityBands", index, "priority")
        if (found := policies.band(band, "priorityBands", index)) is not None:
            bands[band.priority] = found
    return bands if len(bands) == len(given.priority_bands) else None


class _Policies:
    """Resolves the policies in the file and adds defaults for missing ones."""

    def __init__(self, instances: Instances, given: FlowControl, *, may_add: bool) -> None:
        self._instances = instances
        self._given = given
        self._may_add = may_add
        self.found: dict[str, Plugin[Any]] = {}
        """Resolved policies by name."""

    def find(self, name: str, path: Path, role: type[Role], *, may_add: bool | None = None) -> Role | None:
        """Return the policy of a name, or None; a missing policy is a problem unless it is implied."""
        instances = self._instances
        found: Role | None = None
        if name in instances.by_name or name in instances.inactive or name not in _IMPLIED:
            found = instances.resolve_name(name, role, *path)
        elif self._may_add if may_add is None else may_add:
            found = instances.ensure(name, role, "the default of flowControl")
        if found is not None:
            self.found[found.name] = found
        return found

    def band(self, band: PriorityBandPolicies, *place: str | int) -> BandSettings | None:
        """Return the settings of a band; None if a problem was recorded."""
        path: Path = (_PLACE, *place)
        fairness = self.find(band.fairness_policy_ref, (*path, "fairnessPolicyRef"), FairnessPolicy)
        ordering = self.find(band.ordering_policy_ref, (*path, "orderingPolicyRef"), OrderingPolicy)
        if fairness is None or ordering is None:
            return None
        own, common = band.default_request_ttl, self._given.default_request_ttl
        return BandSettings(
            limits=Limits(band.max_requests or BAND_REQUESTS, band.max_bytes or BAND_BYTES),
            ttl_seconds=(common if own is None else own) or inf,
            ordering=ordering,
            fairness=fairness,
        )


def ceilings_at(settings: FlowControlSettings, saturation: float) -> Mapping[int, float]:
    """Return the highest usage of endpoints by priority, highest first; raises ConfigurationError if unusable."""
    policy, priorities = settings.usage_limits, settings.priorities_with(0)
    try:
        found = [float(each) for each in policy.ceilings(priorities, saturation)]
    except Exception as error:  # a plugin may raise anything
        raise ConfigurationError(described(error, type(policy))) from error
    if len(found) != len(priorities):
        raise ConfigurationError(f"{len(found)} ceilings for {len(priorities)} priorities")
    return dict(zip(priorities, found, strict=True))


def fixed_ceilings(settings: FlowControlSettings) -> Mapping[int, float]:
    """Return the ceilings of a policy if they do not depend on the saturation of the pool; otherwise none."""
    try:
        idle, full = ceilings_at(settings, 0.0), ceilings_at(settings, 1.0)
    except ConfigurationError:
        return {}
    return idle if idle == full else {}
