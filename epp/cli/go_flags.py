"""Command lines in the spelling of the Go picker: `--flag`, `--flag=false`, `-v=4`, and flags of its own."""

from collections.abc import Sequence

import structlog

_log = structlog.get_logger()

SWITCHES = frozenset(
    {
        "--allow-experimental-plugins",
        "--disable-endpoint-subset-filter",
        "--emit-endpoint-scores",
        "--enable-cert-reload",
        "--endpoint-insecure-skip-verify",
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
"""Flags of the Go picker that a deployment may have and that change nothing here."""

_OTHER_ENDPOINTS = "name the endpoints with --endpoints, or in a file for file-discovery"
_PLAINTEXT_METRICS = "leave it out; the metrics page is served as plaintext HTTP"
_UNSUPPORTED = {
    "--endpoint-selector": _OTHER_ENDPOINTS,
    "--endpoint-target-ports": _OTHER_ENDPOINTS,
    "--ha-enable-leader-election": "leave it out; every replica serves requests",
    "--metrics-cert-dir": _PLAINTEXT_METRICS,
    "--metrics-client-ca-file": _PLAINTEXT_METRICS,
    "--tls-cipher-suites": "leave it out; gRPC chooses the cipher suites",
}
"""Flags of the Go picker that a deployment relies on, with the remedy: ignoring them would be worse than an error."""


class UnsupportedFlagError(Exception):
    """A flag of the Go picker that this one does not support."""


def go_spelling(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as the parser takes them: `--flag` becomes `--flag=true` for switches, `-v=4` is `-v 4`.

    Flags of the Go picker that change nothing here are dropped with a warning; raises UnsupportedFlagError for one
    that must not be dropped.
    """
    rewritten: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        name, equals, value = argument.partition("=")
        if argument in SWITCHES:
            rewritten.append(f"{argument}=true")
        elif name in {"-v", "--v"}:
            rewritten += ["-v", value] if equals else ["-v"]
        elif name in _UNSUPPORTED and value != "false":
            raise UnsupportedFlagError(f"{name}, a flag of llm-d-router, is not supported: {_UNSUPPORTED[name]}")
        elif name in _UNSUPPORTED or name in _SWITCHES_WITHOUT_EFFECT or name in _VALUES_WITHOUT_EFFECT:
            _log.warning("flag has no effect", flag=name)
            if name in _VALUES_WITHOUT_EFFECT and not equals and remaining:
                remaining.pop(0)
        else:
            rewritten.append(argument)
    return rewritten
