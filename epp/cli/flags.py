"""Flags spelled as the Go picker's: `--flag`, `--flag=false`, durations and sizes with units."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import structlog
import typer

from epp.framework.durations import parse_duration
from epp.framework.quantities import parse_quantity

_log = structlog.get_logger()

SWITCHES = frozenset(
    {
        "--allow-experimental-plugins",
        "--disable-endpoint-subset-filter",
        "--emit-endpoint-scores",
        "--enable-cert-reload",
        "--health-checking",
        "--plain-errors",
        "--secure-serving",
        "--watch-config-file",
    }
)
"""Flags that take `=true` or `=false`, or stand alone for true."""

_SWITCHES_WITHOUT_EFFECT = frozenset(
    {
        "--enable-grpc-stream-metrics",
        "--enable-pprof",
        "--metrics-endpoint-auth",
        "--tracing",
        "--zap-devel",
    }
)
_VALUES_WITHOUT_EFFECT = frozenset(
    {
        "--metrics-staleness-threshold",
        "--pool-group",
        "--pool-namespace",
        "--zap-encoder",
        "--zap-log-level",
        "--zap-stacktrace-level",
        "--zap-time-encoding",
    }
)
"""Flags of the Go picker that a deployment may carry and that change nothing here."""

_NOT_YET = frozenset(
    {
        "--endpoint-selector",
        "--endpoint-target-ports",
        "--ha-enable-leader-election",
        "--metrics-cert-dir",
        "--metrics-client-ca-file",
        "--tls-cipher-suites",
    }
)
"""Flags of the Go picker that a deployment relies on: to ignore them would be worse than to refuse them."""


class Switch(StrEnum):
    """A boolean flag that takes a value, as Go writes them."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Switch.TRUE


class UnsupportedFlagError(Exception):
    """A flag of the Go picker that this one does not support yet."""


def go_spelling(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as the parser takes them: `--flag` becomes `--flag=true` for switches, `-v=4` is `-v 4`.

    Flags of the Go picker that change nothing here are dropped with a warning; raises UnsupportedFlagError for one
    that must not be dropped.
    """
    rewritten: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if argument in SWITCHES:
            rewritten.append(f"{argument}=true")
        elif name in {"-v", "--v"}:
            rewritten += ["-v", value] if equals else ["-v"]
        elif name in _NOT_YET and value != "false":
            raise UnsupportedFlagError(f"{name} is known, but not supported yet")
        elif name in _NOT_YET or name in _SWITCHES_WITHOUT_EFFECT or name in _VALUES_WITHOUT_EFFECT:
            _log.warning("flag has no effect", flag=name)
            if name in _VALUES_WITHOUT_EFFECT and not equals and left:
                left.pop(0)
        else:
            rewritten.append(argument)
    return rewritten


def _duration(text: str | float) -> float:
    if isinstance(text, float):
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _size(text: str | int) -> int:
    if isinstance(text, int):
        return text
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _tls_version(text: str) -> str:
    match text:
        case "VersionTLS12" | "1.2":
            return text
        case "VersionTLS13" | "1.3":
            raise typer.BadParameter(
                f"{text!r} cannot be had: gRPC for Python takes TLS 1.2 and 1.3, with no setting for the lower bound; "
                "let the gateway insist on 1.3 (Envoy: tls_params.tls_minimum_protocol_version of the picker's cluster)"
            )
        case _:
            raise typer.BadParameter(f"{text!r} is not taken: write VersionTLS12, the oldest version that gRPC speaks")


def duration_option(*names: str, text: str) -> Any:
    """Declare an option that takes `50ms` or `1m30s` and gives seconds."""
    return typer.Option(*names, help=text, parser=_duration, metavar="DURATION", show_default=False)


def size_option(*names: str, text: str) -> Any:
    """Declare an option that takes bytes or `32Mi` and gives bytes."""
    return typer.Option(*names, help=text, parser=_size, metavar="SIZE", show_default=False)


def tls_version_option(*names: str, text: str) -> Any:
    """Declare an option that takes `VersionTLS12` or `1.2`, the one lower bound that gRPC holds, and gives it back."""
    return typer.Option(*names, help=text, parser=_tls_version, metavar="VERSION", show_default=False)


WatchConfig = Annotated[
    Switch, typer.Option("--watch-config-file", help="Take over new versions of --config-file without a restart.")
]
Experimental = Annotated[Switch, typer.Option("--allow-experimental-plugins", help="Take plugins of stability Alpha.")]
PluginModules = Annotated[
    str,
    typer.Option(
        "--allow-plugin-modules",
        metavar="MODULE,...",
        help="Python modules whose classes a configuration may name as module:Class; submodules included.",
    ),
]
Verbosity = Annotated[int, typer.Option("-v", help="Log verbosity: 0 warnings, 2 what an operator reads, 4 all.")]
Endpoints = Annotated[
    str | None,
    typer.Option(
        "--endpoints", metavar="HOST:PORT,...", help="Model servers, comma-separated; [ipv6]:port and name=host:port."
    ),
]
