# SPDX-License-Identifier: Apache-2.0
"""Envoy's configuration for one `GatewaySettings`, as data and as text."""

import json
import warnings
from typing import Any

import yaml

from epp.lab.gateway.errors import PackageMissingError
from epp.lab.gateway.settings import GatewaySettings


def load_types() -> None:
    """Load Envoy's typed classes, which takes most of a second, before anything else runs.

    Raises `PackageMissingError` without `envoy-data-plane`.
    """
    with warnings.catch_warnings():
        # The package uses pydantic in a deprecated way.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import epp.lab.gateway._resources  # noqa: F401, PLC0415  an optional package
        except ModuleNotFoundError as error:
            raise PackageMissingError("envoy-data-plane") from error


def bootstrap_dict(settings: GatewaySettings) -> dict[str, Any]:
    """Return the bootstrap as plain data in protobuf's JSON mapping, field names in snake case.

    Each `typed_config` is expanded, with its `@type`. Raises `PackageMissingError` without `envoy-data-plane`, and
    `SettingsError` for settings that do not fit together, such as an override-host cluster without `eds_file`.
    """
    load_types()
    from epp.lab.gateway._resources import build_bootstrap  # noqa: PLC0415  it takes long to load

    return build_bootstrap(settings)


def bootstrap_json(settings: GatewaySettings) -> str:
    """Return the bootstrap as JSON text."""
    return json.dumps(bootstrap_dict(settings), indent=2)


def bootstrap_yaml(settings: GatewaySettings) -> str:
    """Return the bootstrap as YAML text, fields in the order in which Envoy's API declares them."""
    return yaml.safe_dump(bootstrap_dict(settings), sort_keys=False, width=100)
