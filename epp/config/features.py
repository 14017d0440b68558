# SPDX-License-Identifier: Apache-2.0
"""Parts of the file without effect so far: checked, with a warning for each."""

from collections import Counter

from epp.config.document import Path
from epp.config.instances import Instances
from epp.config.model import API_VERSION, LEGACY_API_VERSION, EndpointPickerConfig, FlowControl, PriorityBandPolicies
from epp.config.upstream import IMPLIED_POLICIES, POLICIES, WITHOUT_TASK
from epp.framework.hints import hint_at

_PROPAGATE_PRIORITY = ("requestHandler", "propagatePriority")

FEATURE_GATES = ("flowControl", "haPopulateNonLeaderDatastore")


def check_features(config: EndpointPickerConfig, instances: Instances) -> None:
    """Check gates and flow control, and warn of everything without effect."""
    if config.api_version == LEGACY_API_VERSION:
        instances.warn(f"{LEGACY_API_VERSION} is deprecated: write {API_VERSION}", "apiVersion")
    gates = _gates(config, instances)
    if gates.get("flowControl", False):
        index = next(i for i, text in enumerate(config.feature_gates) if text.startswith("flowControl"))
        instances.warn("flow control is known, not supported yet: nothing queues", "featureGates", index)
    elif config.flow_control is not None:
        instances.warn("has no effect: feature gate flowControl is off", "flowControl")
    if config.flow_control is not None:
        _check_flow_control(config.flow_control, instances)
    if config.saturation_detector is not None:
        instances.warn("is deprecated, and without effect: write it into flowControl", "saturationDetector")
        _check_policy(config.saturation_detector.plugin_ref, "saturation detector", instances, ("saturationDetector",))
    _warn_of_idle_detectors(config, instances)
    layer = config.data_layer
    for path, value in (
        (("discovery", "peers"), layer.discovery and layer.discovery.peers),
        (("crossReplica",), layer.cross_replica),
        (("peerDiscovery",), layer.peer_discovery),
        (("crossReplicaSyncerPluginRef",), layer.cross_replica_syncer_plugin_ref),
        (("crossReplicaSyncInterval",), layer.cross_replica_sync_interval),
        (("crossReplicaPublishTimeout",), layer.cross_replica_publish_timeout),
    ):
        if value:
            instances.warn("has no effect: replicas do not exchange data yet", "dataLayer", *path)
    if config.request_handler.propagate_priority:
        instances.warn("is known, not supported yet: bodies keep the priority they have", *_PROPAGATE_PRIORITY)


def _warn_of_idle_detectors(config: EndpointPickerConfig, instances: Instances) -> None:
    """Warn of saturation detectors that no profile names as filters."""
    filtering = {ref.plugin_ref for profile in config.scheduling_profiles for ref in profile.plugins}
    for plugin in instances:
        if config.scheduling_profiles and plugin.plugin_type in POLICIES and plugin.name not in filtering:
            instances.warn(
                f"plugin type {plugin.plugin_type!r} (saturation detector): flow control is known, not supported yet, "
                "and no profile names it as a filter: it has no effect",
                *instances.path_of(plugin),
            )


def _gates(config: EndpointPickerConfig, instances: Instances) -> dict[str, bool]:
    gates: dict[str, bool] = {}
    for index, text in enumerate(config.feature_gates):
        name, equals, value = text.partition("=")
        if name not in FEATURE_GATES:
            remedy = hint_at(name, FEATURE_GATES)
            instances.fail(f"feature gate {name!r} is not known", "featureGates", index, remedy=remedy)
        elif equals and value not in {"true", "false"}:
            instances.fail(
                f"feature gate {name!r} is {value!r}, which is neither true nor false", "featureGates", index
            )
        gates[name] = value != "false"
    return gates


def _check_flow_control(flow: FlowControl, instances: Instances) -> None:
    path: Path = ("flowControl",)
    if flow.saturation_detector is not None:
        where = (*path, "saturationDetector", "pluginRef")
        _check_policy(flow.saturation_detector.plugin_ref, "saturation detector", instances, where)
    where = (*path, "usageLimitPolicyPluginRef")
    _check_policy(flow.usage_limit_policy_plugin_ref, "usage limit policy", instances, where)
    bands: list[tuple[PriorityBandPolicies, Path]] = [
        (band, (*path, "priorityBands", index)) for index, band in enumerate(flow.priority_bands)
    ]
    for template, key in (
        (flow.default_priority_band, "defaultPriorityBand"),
        (flow.default_negative_priority_band, "defaultNegativePriorityBand"),
    ):
        if template is not None:
            bands.append((template, (*path, key)))
    for band, where in bands:
        _check_policy(band.fairness_policy_ref, "fairness policy", instances, (*where, "fairnessPolicyRef"))
        _check_policy(band.ordering_policy_ref, "ordering policy", instances, (*where, "orderingPolicyRef"))
    counts = Counter(band.priority for band in flow.priority_bands)
    for index, band in enumerate(flow.priority_bands):
        if counts[band.priority] > 1:
            instances.fail(f"two bands have priority {band.priority}", *path, "priorityBands", index, "priority")


def _check_policy(name: str, kind: str, instances: Instances, path: Path) -> None:
    """Refuse a reference to a policy that is not declared, or of another kind."""
    declared = {policy: policy for policy in IMPLIED_POLICIES}
    declared |= {plugin.name: plugin.plugin_type for plugin in instances}
    declared |= instances.inactive
    if name not in declared:
        policies = [known for known, declared_type in declared.items() if declared_type in POLICIES]
        instances.fail_unknown(name, policies, *path)
        return
    found = POLICIES.get(declared[name])
    if found is not None and found != kind:
        instances.fail(f"plugin {name!r} (type {declared[name]}) serves as {found}, not as {kind}", *path)
    elif found is None and (name in instances.by_name or declared[name] in WITHOUT_TASK):
        instances.fail(f"plugin {name!r} (type {declared[name]}) is no {kind}", *path)
