# SPDX-License-Identifier: Apache-2.0
"""Feature gates, and parts of the file without effect so far: checked, with a warning for each."""

from collections.abc import Mapping

from epp.config.instances import Instances
from epp.config.model import API_VERSION, LEGACY_API_VERSION, EndpointPickerConfig
from epp.framework.messages import hint_at

_PROPAGATE_PRIORITY = ("requestHandler", "propagatePriority")

FLOW_CONTROL = "flowControl"
FEATURE_GATES = (FLOW_CONTROL, "haPopulateNonLeaderDatastore")


def check_features(config: EndpointPickerConfig, instances: Instances) -> Mapping[str, bool]:
    """Return which gates are on; warn of everything without effect."""
    if config.api_version == LEGACY_API_VERSION:
        instances.warn(f"{LEGACY_API_VERSION} is deprecated: write {API_VERSION}", "apiVersion")
    gates = _gates(config, instances)
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
    return gates


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
