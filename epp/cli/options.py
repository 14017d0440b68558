"""Options that several commands share: their types and help, and the settings that they stand for."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from epp.config import LoadedConfig, load_file, load_text
from epp.discovery import StaticDiscovery, Target, parse_targets
from epp.framework import ConfigurationError
from epp.framework.datalayer import Discovery
from epp.framework.durations import parse_duration
from epp.framework.endpoint import EndpointTrust
from epp.framework.plugin import Parameters
from epp.framework.quantities import parse_quantity


class Switch(StrEnum):
    """A boolean flag that takes a value, as in Go."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Switch.TRUE


def duration_option(text: str) -> Any:
    """Declare an option that takes `50ms` or `1m30s` and returns seconds."""
    return _parsed_option(parse_duration, "DURATION", text)


def size_option(text: str) -> Any:
    """Declare an option that takes bytes or `32Mi` and returns bytes."""
    return _parsed_option(parse_quantity, "SIZE", text)


def tls_version_option(text: str) -> Any:
    """Declare an option that takes `VersionTLS12` or `1.2`, the only minimum version that gRPC can have."""
    return _parsed_option(_parse_tls_version, "VERSION", text)


def _parsed_option(parse: Callable[[str], object], metavar: str, text: str) -> Any:
    def parse_or_default(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return typer.Option(help=text, parser=parse_or_default, metavar=metavar, show_default=False)


def _parse_tls_version(text: str) -> str:
    match text:
        case "VersionTLS12" | "1.2":
            return text
        case "VersionTLS13" | "1.3":
            raise ValueError(
                f"{text!r} is not supported: gRPC for Python accepts TLS 1.2 and 1.3, without a setting for the "
                "minimum; require 1.3 in the gateway (Envoy: tls_params.tls_minimum_protocol_version of the picker's "
                "cluster)"
            )
        case _:
            raise ValueError(f"{text!r} is not supported: write VersionTLS12, the oldest version that gRPC accepts")


Endpoints = Annotated[
    str | None,
    typer.Option(
        "--endpoints",
        metavar="HOST:PORT,...",
        help="Model servers: host:port, [ipv6]:port, https://host:port, name=host:port.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config-file", help="An EndpointPickerConfig file.")]
ConfigText = Annotated[str | None, typer.Option("--config-text", help="An EndpointPickerConfig as text.")]
WatchConfig = Annotated[
    Switch, typer.Option("--watch-config-file", help="Apply new versions of --config-file without a restart.")
]
Experimental = Annotated[Switch, typer.Option("--allow-experimental-plugins", help="Allow plugins of stability Alpha.")]
PluginModules = Annotated[
    str,
    typer.Option(
        "--allow-plugin-modules",
        metavar="MODULE,...",
        help="Python modules whose classes a configuration may name as module:Class; submodules included.",
    ),
]
Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address for clients; port 0 for any.")]
Verbosity = Annotated[int, typer.Option("-v", help="Log verbosity: 0 for warnings, 2 for events, 4 for everything.")]


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list."""
    return tuple(part for each in text.split(",") if (part := each.strip()))


def read_config(file: Path | None, text: str | None) -> LoadedConfig | None:
    """Return the configuration in the file or the text, None for neither; raises ConfigurationError."""
    if file is not None and text is not None:
        raise ConfigurationError("--config-file and --config-text exclude each other: give one")
    if file is not None:
        return load_file(file)
    return None if text is None else load_text(text)


def read_endpoints(text: str | None) -> Discovery[Parameters] | None:
    """Return the pool of --endpoints, None without it; raises ConfigurationError."""
    return None if text is None else StaticDiscovery(read_targets(text))


def read_trust(ca_file: Path | None, *, skip_verify: bool) -> EndpointTrust:
    """Return how certificates of endpoints are verified; raises ConfigurationError for flags that contradict."""
    if ca_file is not None and skip_verify:
        raise ConfigurationError(
            "--endpoint-ca-file has no effect with --endpoint-insecure-skip-verify: leave one of them out"
        )
    return EndpointTrust(None if ca_file is None else ca_file.absolute(), verify=not skip_verify)


def read_targets(text: str | None) -> tuple[Target, ...]:
    """Return the endpoints of --endpoints, none without it; raises ConfigurationError."""
    if text is None:
        return ()
    try:
        return parse_targets(text)
    except ValueError as error:
        raise ConfigurationError(f"--endpoints: {error}") from error
