# SPDX-License-Identifier: Apache-2.0
"""`flowControl`, the part of the file on queues in front of full endpoints."""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any, TypeVar

from epp.config.document import Path
from epp.config.instances import Instances
from epp.config.model import EndpointPickerConfig, FlowControl, PriorityBandPolicies
from epp.flow_control import (
    OWN_GRACE_SECONDS,
    REPORT_GRACE_SECONDS,
    BandSettings,
    EvictionSettings,
    FlowControlSettings,
    Limits,
)
from epp.framework.errors import ConfigurationError
from epp.framework.flow_control import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.framework.plugin import Plugin

_IMPLIED = frozenset(
    {"global-strict-fairness-policy", "fcfs-ordering-policy", "static-usage-limit-policy", "utilization-detector"}
)
"""Policies that a file may refer to without declaring them."""

_EVICTION_FILTER = "sheddable-eviction-filter"
_EVICTION_ORDER = "priority-then-time-eviction-order-policy"

_PLACE = "flowControl"

_R = TypeVar("_R", bound=Plugin[Any])


def build_flow_control(
    config: EndpointPickerConfig, instances: Instances, *, is_on: bool
) -> FlowControlSettings | None:
    """Return what the file says of flow control; None where its gate is off, or where a problem was recorded."""
    if not is_on:
        for key, value in ((_PLACE, config.flow_control), ("saturationDetector", config.saturation_detector)):
            if value is not None:
                instances.warn("has no effect: feature gate flowControl is off", key)
    given = config.flow_control or FlowControl()
    policies = _Policies(instances, given, may_add=is_on)
    detector = policies.find(*_detector(config, given, instances), SaturationDetector)
    usage = policies.find(given.usage_limit_policy_plugin_ref, (_PLACE, "usageLimitPolicyPluginRef"), UsageLimitPolicy)
    default = policies.band(given.default_priority_band or PriorityBandPolicies(), "defaultPriorityBand")
    negative = policies.band(
        given.default_negative_priority_band or given.default_priority_band or PriorityBandPolicies(),
        "defaultNegativePriorityBand",
    )
    bands = _bands(given, policies, instances)
    if detector is None or usage is None or default is None or negative is None or bands is None or not is_on:
        return None
    ttl, empty = given.default_request_ttl, given.no_endpoint_request_ttl
    return FlowControlSettings(
        detector=detector,
        usage_limits=usage,
        default_band=default,
        negative_band=negative,
        bands=bands,
        limits=Limits(given.max_requests, given.max_bytes),
        no_endpoint_ttl_seconds=(ttl if empty is None else empty) or inf,
        eviction=_eviction(given, instances, detector),
    )


def _eviction(given: FlowControl, instances: Instances, detector: SaturationDetector[Any]) -> EvictionSettings | None:
    """Return which requests may be ended for others, by the only policies of the file, or else by the usual ones."""
    if not given.enable_eviction:
        for role in (EvictionFilter, EvictionOrder):
            for plugin in _declared(instances, role):
                instances.warn(
                    f"plugin {plugin.name!r} has no effect: flowControl.enableEviction is off",
                    *instances.path_of(plugin),
                )
        return None
    chosen = _only(instances, EvictionFilter, _EVICTION_FILTER), _only(instances, EvictionOrder, _EVICTION_ORDER)
    if chosen[0] is None or chosen[1] is None:
        return None
    grace = OWN_GRACE_SECONDS if detector.counts_own_requests else REPORT_GRACE_SECONDS
    return EvictionSettings(chosen[0], chosen[1], grace)


def _only(instances: Instances, role: type[_R], usual: str) -> _R | None:
    """Return the plugin of a role that the file declares, or the usual one; None where a problem was recorded."""
    declared = _declared(instances, role)
    if len(declared) > 1:
        names = ", ".join(repr(plugin.name) for plugin in declared)
        instances.fail(f"needs one {role.__name__}, not {names}", _PLACE, "enableEviction")
        return None
    if declared:
        return declared[0]
    try:
        return instances.ensure(usual, role, "flowControl.enableEviction")
    except ConfigurationError as error:
        instances.fail(error.problem, _PLACE, "enableEviction", remedy=error.remedy)
        return None


def _declared(instances: Instances, role: type[_R]) -> tuple[_R, ...]:
    return tuple(plugin for plugin in instances.of(role) if plugin.name not in instances.implied)


def _detector(config: EndpointPickerConfig, given: FlowControl, instances: Instances) -> tuple[str, Path]:
    """Return the name of the detector, and where it is said."""
    if config.saturation_detector is not None:
        instances.warn("is deprecated: write it into flowControl", "saturationDetector")
    if given.saturation_detector is not None:
        return given.saturation_detector.plugin_ref, (_PLACE, "saturationDetector", "pluginRef")
    if config.saturation_detector is not None:
        return config.saturation_detector.plugin_ref, ("saturationDetector", "pluginRef")
    return "utilization-detector", (_PLACE,)


def _bands(given: FlowControl, policies: "_Policies", instances: Instances) -> Mapping[int, BandSettings] | None:
    """Return the bands of the file by priority; None where a problem was recorded."""
    counts = Counter(band.priority for band in given.priority_bands)
    bands: dict[int, BandSettings] = {}
    for index, band in enumerate(given.priority_bands):
        if counts[band.priority] > 1:
            where = (_PLACE, "priorityBands", index, "priority")
            instances.fail(f"two bands have priority {band.priority}", *where)
        found = policies.band(band, "priorityBands", index)
        if found is not None:
            bands[band.priority] = found
    return bands if len(bands) == len(given.priority_bands) else None


class _Policies:
    """Finds the policies that the file names, and adds those that it leaves out."""

    def __init__(self, instances: Instances, given: FlowControl, *, may_add: bool) -> None:
        self._instances = instances
        self._given = given
        self._may_add = may_add

    def find(self, name: str, path: Path, role: type[_R]) -> _R | None:
        """Return the policy of a name; None where there is none, which is a problem unless it is implied."""
        instances = self._instances
        if name in instances.by_name or name in instances.inactive or name not in _IMPLIED:
            return instances.resolve_name(name, role, *path)
        return instances.ensure(name, role, "flowControl names no other") if self._may_add else None

    def band(self, band: PriorityBandPolicies, *place: str | int) -> BandSettings | None:
        """Return what holds at a priority; None where a problem was recorded."""
        path: Path = (_PLACE, *place)
        fairness = self.find(band.fairness_policy_ref, (*path, "fairnessPolicyRef"), FairnessPolicy)
        ordering = self.find(band.ordering_policy_ref, (*path, "orderingPolicyRef"), OrderingPolicy)
        if fairness is None or ordering is None:
            return None
        own, common = band.default_request_ttl, self._given.default_request_ttl
        return BandSettings(
            limits=Limits(band.max_requests, band.max_bytes),
            ttl_seconds=(common if own is None else own) or inf,
            ordering=ordering,
            fairness=fairness,
        )
