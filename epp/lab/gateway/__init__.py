# SPDX-License-Identifier: Apache-2.0
"""A local Envoy with a picker behind it: its configuration, and the process."""

from epp.lab.gateway.bootstrap import bootstrap_dict, bootstrap_json, bootstrap_yaml, load_types
from epp.lab.gateway.deploy_files import STANDALONE, chart_proxy_yaml, standalone_yaml
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.settings import (
    Bodies,
    BodyMode,
    ClusterType,
    EnvoyDiedError,
    EnvoyStartError,
    FailureMode,
    GatewayError,
    GatewaySettings,
    HeaderMode,
    ListenAddressError,
    PackageMissingError,
    PipeAddress,
    PortTakenError,
    SettingsError,
)

__all__ = [
    "STANDALONE",
    "Bodies",
    "BodyMode",
    "ClusterType",
    "EnvoyDiedError",
    "EnvoyProcess",
    "EnvoyStartError",
    "FailureMode",
    "GatewayError",
    "GatewaySettings",
    "HeaderMode",
    "ListenAddressError",
    "PackageMissingError",
    "PipeAddress",
    "PortTakenError",
    "SettingsError",
    "bootstrap_dict",
    "bootstrap_json",
    "bootstrap_yaml",
    "chart_proxy_yaml",
    "load_types",
    "standalone_yaml",
]
