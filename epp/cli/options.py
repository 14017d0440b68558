# SPDX-License-Identifier: Apache-2.0
"""Types of options, options of several commands, and the Go picker's spelling of flags.

Heavy modules are not imported, because `--help` needs all options.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from epp.extproc.settings import TlsVersion
from epp.runtime.flags import CIPHER_SUITES, DURATION, FLAG, LOG_LEVEL, SIZE, SWITCH, TLS_VERSION, Kind, flag

T = TypeVar("T")

BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}
"""The values that Go accepts for a boolean."""

POOL_GROUP = "inference.networking.k8s.io"

SWITCHES_WITHOUT_EFFECT = frozenset({"--enable-pprof"})
"""Boolean flags of the Go picker that are accepted without effect: Python has no pprof."""


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
        elif name in SWITCHES_WITHOUT_EFFECT:
            dropped.append(name)
        else:
            rewritten.append(argument)
    return Spelling(rewritten, dropped)


def lists_joined(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """Return the arguments with each of the flags `lists` only once, with the values of repeated ones joined by commas.

    Arguments after `--` are not changed.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept: list[str] = []
    values: dict[str, list[str]] = {}
    remaining = list(arguments[:end])
    while remaining:
        argument = remaining.pop(0)
        name, equals, value = argument.partition("=")
        if name in lists and (equals or remaining):
            values.setdefault(name, []).append(value if equals else remaining.pop(0))
        else:
            kept.append(argument)
    return [*kept, *(f"{name}={','.join(each)}" for name, each in values.items()), *arguments[end:]]


class Output(StrEnum):
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


def option(text: str, kind: Kind | str | None = None, *, name: str = "") -> Any:
    """Declare an option for typer; `kind` may be only the name of the value in the help."""
    kind = kind if isinstance(kind, Kind) else Kind(kind)
    settings: dict[str, Any] = {"help": text, **kind._asdict()}
    if kind in _PARSERS:
        settings["parser"] = partial(_parse_or_default, _PARSERS[kind])
    if kind == SWITCH:
        settings["autocompletion"] = lambda: ["true", "false"]
    return typer.Option(*([name] if name else []), **settings)


def argument(default: Any, text: str, metavar: str) -> Any:
    """Declare an argument as a field of the dataclass of its command; `...` as default for a required one."""
    metadata = {"argument": typer.Argument(help=text, metavar=metavar)}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def parameters(flags: type[Any]) -> inspect.Signature:
    """Return the flags of a dataclass as the parameters of a function, from which typer makes options.

    A field with the settings of a component is replaced by the flags of these settings.
    """
    found = []
    for each in fields(flags):
        if is_dataclass(each.type):
            settings = each.default_factory()  # type: ignore[operator]  # settings of components always have one
            found += [_parameter(name, part, getattr(settings, part.name)) for name, part in _parts(each.type)]
        else:
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            found.append(_parameter(each.name, each, default))
    return inspect.Signature(found)


def filled(flags: type[T], values: Mapping[str, object]) -> T:
    """Return the flags of a command with the values of its parameters; raises ValueError if they contradict."""
    given: dict[str, Any] = {}
    for each in fields(flags):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(each.type):
            parts = {part.name: values[name] for name, part in _parts(each.type)}
            given[each.name] = replace(each.default_factory(), **parts)  # type: ignore[operator]  # as above
        else:
            given[each.name] = values[each.name]
    return flags(**given)


def _parts(settings: Any) -> Iterator[tuple[str, Field[Any]]]:
    """Yield the flags among the fields of settings, each after its name as a parameter."""
    for each in fields(settings):
        if (declared := each.metadata.get(FLAG)) is not None:
            yield (declared.name.removeprefix("--").replace("-", "_") or each.name), each


def _parameter(name: str, flag: Field[Any], default: Any) -> inspect.Parameter:
    annotation: Any = flag.type
    if (declared := flag.metadata.get(FLAG)) is not None:
        if declared.kind == SWITCH:
            annotation = str if flag.type is bool else str | None
        if declared.kind in _SHOWN and isinstance(default, (bool, int, float)):
            default = _SHOWN[declared.kind](default)
        annotation = Annotated[annotation, option(declared.text, declared.kind, name=declared.name)]
    elif (declared := flag.metadata.get("argument")) is not None:
        annotation = Annotated[annotation, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def is_switch(parameter: Any) -> bool:
    return getattr(parameter, "metavar", None) == SWITCH.metavar


def is_list(parameter: Any) -> bool:
    """Whether a parameter of a command is a comma-separated list, which may be repeated."""
    metavar = getattr(parameter, "metavar", None) or ""
    return metavar.endswith(",...") and not parameter.multiple


def _parse_or_default(parse: Callable[[str], object], value: object) -> object:
    if isinstance(value, Seconds | Bytes):
        return float(value) if isinstance(value, Seconds) else int(value)
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parse_switch(text: str) -> bool:
    if text not in BOOLEANS:
        raise ValueError(f"{text!r} is neither true nor false: write one of {', '.join(BOOLEANS)}")
    return BOOLEANS[text]


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
    raise ValueError(f"{text!r} is not a level: write {', '.join(verbosities)}, or a verbosity of 1 or more, as for -v")


def _parse_tls_version(text: str) -> TlsVersion:
    version = f"VersionTLS{text.replace('.', '')}" if text in {"1.2", "1.3"} else text
    if version not in set(TlsVersion):
        raise ValueError(f"{text!r} is not supported: write {' or '.join(TlsVersion)}")
    return TlsVersion(version)


def _parse_cipher_suites(text: str) -> str:
    if not text:  # the default: completion parses it too
        return ""
    from epp.extproc.tls import openssl_ciphers

    return openssl_ciphers(text)


_PARSERS: Mapping[Kind, Callable[[str], object]] = {
    SWITCH: _parse_switch,
    DURATION: _parse_duration,
    SIZE: _parse_size,
    LOG_LEVEL: _parse_log_level,
    TLS_VERSION: _parse_tls_version,
    CIPHER_SUITES: _parse_cipher_suites,
}
_SHOWN: Mapping[Kind, Callable[[Any], object]] = {
    SWITCH: lambda value: "true" if value else "false",
    DURATION: Seconds,
    SIZE: Bytes,
}
"""Converts a default to the format of the flag."""

endpoints_flag = partial(
    flag,
    None,
    "Model servers, with commas or blanks between them: host:port, [ipv6]:port, a port of this machine, or a "
    "URL without a path, https:// too. Labels follow each: 'name=host:port;spot=true;accelerator=h100', in quotes "
    "because of the semicolons; accelerator names the class of the hardware. May be repeated.",
    "[NAME=]HOST:PORT,...",
)
listen_flag = partial(flag, "127.0.0.1:8080", "Address that clients connect to; port 0 for any free one.", "[IP:]PORT")
_DRAIN_TEXT = "Time limit for open requests after SIGTERM or Ctrl-C; a second signal ends them."
drain_timeout_flag = partial(flag, text=_DRAIN_TEXT, kind=DURATION)
experimental_flag = partial(flag, default=False, text="Allow plugins of stability Alpha.", kind=SWITCH)
plugin_modules_flag = partial(
    flag, "", "Python modules, with submodules, whose classes a configuration may name as module:Class.", "MODULE,..."
)
output_flag = partial(flag, Output.TEXT, "text, or json for programs.")
_VERBOSITY_TEXT = "Log verbosity: 0 for warnings, 1 for events, 2 also for a line per request, 4 for all its steps."
verbosity_flag = partial(flag, text=_VERBOSITY_TEXT, kind="LEVEL", name="-v")
pool_namespace_flag = partial(
    flag,
    None,
    "Namespace of the pool and its objects; default: $NAMESPACE, that of this pod, or `default`.",
    "NAMESPACE",
)
pool_group_flag = partial(flag, POOL_GROUP, "API group of the InferencePool.", "GROUP")
endpoint_selector_flag = partial(
    flag,
    None,
    "Label selector of the pods that are the endpoints, without an InferencePool, such as "
    "'app=vllm,env in (a,b),!old'; with --endpoint-target-ports.",
    "SELECTOR",
)
endpoint_target_ports_flag = partial(flag, None, "Ports of the pods of --endpoint-selector: one to eight.", "PORT,...")
kubeconfig_flag = partial(
    flag, None, "Access to Kubernetes; by default $KUBECONFIG, the account of this pod, or ~/.kube/config.", "FILE"
)
