# SPDX-License-Identifier: Apache-2.0
"""Types of options, options of several commands, and the Go picker's spelling of flags.

Nothing heavy is imported: `--help` needs them all.
"""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}
"""The values that Go accepts for a boolean."""

SWITCHES_WITHOUT_EFFECT = frozenset({"--enable-pprof", "--zap-devel"})
"""Boolean flags of the Go picker that are accepted without effect."""

VALUES_WITHOUT_EFFECT = frozenset({"--metrics-staleness-threshold", "--zap-stacktrace-level"})
"""Flags of the Go picker with a value that are accepted without effect."""


class Spelling(NamedTuple):
    """A command line in this program's spelling."""

    arguments: list[str]
    without_effect: list[str]
    """Dropped flags of the Go picker."""


def go_spelling(arguments: Sequence[str], switches: Collection[str] = ()) -> Spelling:
    """Return the arguments in the spelling of the parser; `switches` are the boolean flags.

    A switch becomes `--flag=value`; the value is the text after `=`, or the next word if it is a boolean of Go, or
    `true`. `-v=4` becomes `-v 4`. Arguments after `--` are not changed.
    """
    rewritten: list[str] = []
    dropped: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--":
            rewritten += [argument, *remaining]
            break
        if not equals and (name in switches or name in SWITCHES_WITHOUT_EFFECT):
            value = remaining.pop(0) if remaining and remaining[0] in BOOLEANS else "true"
        if name in switches:
            rewritten.append(f"{name}={value}")
        elif name in {"-v", "--v"}:
            rewritten += ["-v", value] if equals else ["-v"]
        elif name in SWITCHES_WITHOUT_EFFECT or name in VALUES_WITHOUT_EFFECT:
            dropped.append(name)
            if name in VALUES_WITHOUT_EFFECT and not equals and remaining:
                remaining.pop(0)
        else:
            rewritten.append(argument)
    return Spelling(rewritten, dropped)


class Switch(StrEnum):
    """A boolean flag: alone for true, or with a value as in Go."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Switch.TRUE


class Output(StrEnum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"


class Seconds(float):
    """The default of a duration, shown in the format of the flag."""

    def __str__(self) -> str:
        return f"{self * 1000:g}ms" if 0 < self < 1 else f"{float(self):g}s"


class Bytes(int):
    """The default of a size, shown in the format of the flag."""

    def __str__(self) -> str:
        for unit, size in (("Mi", 1024 * 1024), ("Ki", 1024)):
            if self % size == 0:
                return f"{self // size}{unit}"
        return f"{int(self)}"


_SWITCH = "[true|false]"


def switch_option(text: str) -> Any:
    """Declare a boolean flag."""
    return _parsed_option(_parse_switch, _SWITCH, text, autocompletion=lambda: ["true", "false"])


def is_switch(parameter: Any) -> bool:
    """Whether a parameter of a command is a boolean flag."""
    return getattr(parameter, "metavar", None) == _SWITCH


def port_option(text: str) -> Any:
    """Declare an option that takes a port, or 0."""
    return typer.Option(help=text, metavar="PORT", min=0, max=65535)


def count_option(text: str) -> Any:
    """Declare an option that takes a number of things, at least one."""
    return typer.Option(help=text, metavar="NUMBER", min=1)


def connections_option(text: str) -> Any:
    """Declare an option that takes a number of connections."""
    more = "an eighth of the limit of file descriptors at most; one more closes the oldest of the host with most."
    return typer.Option(help=f"{text}, {more}", metavar="COUNT", min=1)


def duration_option(text: str) -> Any:
    """Declare an option that takes `50ms` or `1m30s` and returns seconds."""
    return _parsed_option(_parse_duration, "DURATION", text)


def size_option(text: str) -> Any:
    """Declare an option that takes bytes, `32Mi` or `32MiB`, and returns bytes."""
    return _parsed_option(_parse_size, "SIZE", text)


def log_level_option(text: str) -> Any:
    """Declare an option that takes a level of zap and returns its verbosity."""
    return _parsed_option(_parse_log_level, "[debug|info|error|NUMBER]", text)


def tls_version_option(text: str) -> Any:
    """Declare an option that takes `VersionTLS12`, `VersionTLS13`, `1.2` or `1.3`."""
    return _parsed_option(_parse_tls_version, "VERSION", text)


def cipher_suites_option(text: str) -> Any:
    """Declare an option that takes names of cipher suites and returns OpenSSL's names."""
    return _parsed_option(_parse_cipher_suites, "NAME,...", text)


def _parsed_option(parse: Callable[[str], object], metavar: str, text: str, **settings: Any) -> Any:
    def parse_or_default(value: object) -> object:
        if isinstance(value, Seconds | Bytes):
            return float(value) if isinstance(value, Seconds) else int(value)
        if not isinstance(value, str) or isinstance(value, Switch):
            return value
        try:
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return typer.Option(help=text, parser=parse_or_default, metavar=metavar, **settings)


def _parse_switch(text: str) -> Switch:
    if text not in BOOLEANS:
        raise ValueError(f"{text!r} is neither true nor false: write one of {', '.join(BOOLEANS)}")
    return Switch.TRUE if BOOLEANS[text] else Switch.FALSE


def _parse_duration(text: str) -> float:
    from epp.framework.quantities import parse_duration

    return parse_duration(text)


def _parse_size(text: str) -> int:
    from epp.framework.quantities import parse_size

    return parse_size(text)


def _parse_log_level(text: str) -> int:
    verbosities = {"debug": 4, "info": 1, "error": -1, "panic": -1}
    if text in verbosities:
        return verbosities[text]
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError(
        f"{text!r} is not a level: write {', '.join(verbosities)}, or a verbosity of 1 or more, as -v has it"
    )


def _parse_tls_version(text: str) -> str:
    versions = {
        "VersionTLS12": "VersionTLS12",
        "1.2": "VersionTLS12",
        "VersionTLS13": "VersionTLS13",
        "1.3": "VersionTLS13",
    }
    if text not in versions:
        raise ValueError(f"{text!r} is not supported: write VersionTLS12 or VersionTLS13")
    return versions[text]


def _parse_cipher_suites(text: str) -> str:
    if not text:  # the default: completion parses it too
        return ""
    from epp.extproc.tls import openssl_ciphers

    return openssl_ciphers(text)


Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoints",
        metavar="[NAME=]HOST:PORT,...",
        help="Model servers, with commas or blanks between them: host:port, [ipv6]:port, a port of this machine, or a "
        "URL without a path, https:// too. Labels follow each: 'name=host:port;spot=true;accelerator=h100', in quotes "
        "because of the semicolons; accelerator names the class of the hardware. May be repeated.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        metavar="FILE",
        help="An EndpointPickerConfig file, or a ConfigMap with one; `epp config list` names ready-made ones.",
    ),
]
Listen = Annotated[
    str, typer.Option("--listen", metavar="[IP:]PORT", help="Address that clients connect to; port 0 for any free one.")
]
MetricsPort = Annotated[
    int | None, port_option("Port of the metrics page on --bind-address; 0 for any free one, no page without a port.")
]
AdminPort = Annotated[
    int | None,
    port_option(
        "Port of the admin API, which shows and changes quotas; 0 for any free one, no admin API without a port."
    ),
]
AdminHost = Annotated[
    str,
    typer.Option(
        metavar="IP",
        help="Address that the admin API listens on; addresses other than 127.0.0.1 and ::1 require a token.",
    ),
]
AdminTokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the token that clients of the admin API have to send, as Authorization: Bearer; it is read "
        "again when it changes.",
    ),
]
DrainTimeout = Annotated[
    float, duration_option("Longest time for open requests to finish after SIGTERM or Ctrl-C; a second one cuts them.")
]
Experimental = Annotated[Switch, switch_option("Allow plugins of stability Alpha.")]
PluginModules = Annotated[
    str,
    typer.Option(
        metavar="MODULE,...",
        help="Python modules whose classes a configuration may name as module:Class; submodules included.",
    ),
]
OutputFormat = Annotated[Output, typer.Option(help="text, or json for programs.")]
Verbosity = Annotated[
    int,
    typer.Option(
        "-v",
        metavar="LEVEL",
        help="Log verbosity: 0 for warnings, 1 for events, 2 for a line per request too, 4 for all its steps.",
    ),
]
PoolName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the pool in the labels of its metrics, by default default; objects of --objects that are for "
        "pools of other names are left out; where the endpoints are the pods in these files, it is the InferencePool "
        "that selects them.",
    ),
]
PoolNamespace = Annotated[
    str | None,
    typer.Option(
        metavar="NAMESPACE",
        help="Namespace of the InferencePool, its pods, objectives and rewrites; by default $NAMESPACE, that of "
        "this pod, or default.",
    ),
]
PoolGroup = Annotated[str, typer.Option(metavar="GROUP", help="API group of the InferencePool.")]
EndpointSelector = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL=VALUE,...",
        help="Labels of the pods that are the endpoints, without an InferencePool; with --endpoint-target-ports.",
    ),
]
EndpointTargetPorts = Annotated[
    str | None, typer.Option(metavar="PORT,...", help="Ports of the pods of --endpoint-selector: one to eight.")
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Access to the Kubernetes API; by default $KUBECONFIG, the service account of this pod, or "
        "~/.kube/config.",
    ),
]
