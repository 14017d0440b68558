# SPDX-License-Identifier: Apache-2.0
"""Command lines in the spelling of the Go picker: `--flag`, `--flag=false`, `-v=4`, and flags of its own."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}
"""The values that Go takes for a boolean."""

SWITCHES_WITHOUT_EFFECT = frozenset(
    {
        "--enable-pprof",
        "--zap-devel",
    }
)
"""Boolean flags of the Go picker that a deployment may have and that change nothing here."""

VALUES_WITHOUT_EFFECT = frozenset(
    {
        "--metrics-staleness-threshold",
        "--zap-stacktrace-level",
    }
)
"""The same for flags with a value."""


class Spelling(NamedTuple):
    """A command line in this program's own spelling."""

    arguments: list[str]
    without_effect: list[str]
    """Flags of the Go picker that were dropped, as they change nothing here."""


def go_spelling(arguments: Sequence[str], switches: Collection[str] = ()) -> Spelling:
    """Return the arguments as the parser takes them; `switches` are the boolean flags.

    A switch becomes `--flag=value`: with what follows `=`, or else the next word if that is one of the values that Go
    takes for a boolean, or else `true`. `-v=4` becomes `-v 4`. What follows `--` stays as it is.
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
