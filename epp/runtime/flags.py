# SPDX-License-Identifier: Apache-2.0
"""Flags as fields of dataclasses: a flag is a field of the settings of the component that uses it.

Imports must be fast, because `--help` needs all flags.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Kind of a value: its name in the help, and its limits."""

    metavar: str | None
    min: float | None = None
    max: float | None = None
    autocompletion: Callable[[], list[str]] | None = None
    """Returns values for shell completion."""


SWITCH = Kind("[true|false]")
PORT = Kind("PORT", 0, 65535)
COUNT = Kind("NUMBER", 1)
DURATION = Kind("DURATION")
SIZE = Kind("SIZE")
LOG_LEVEL = Kind("[debug|info|error|NUMBER]")
TLS_VERSION = Kind("VERSION")
CIPHER_SUITES = Kind("SUITE,...")

FLAG = "flag"
"""Key of a `Flag` in the metadata of a field."""


class Flag(NamedTuple):
    """Help text of a flag, and the limits of its value."""

    text: str
    kind: Kind
    name: str = ""
    """Name of the flag, like `--drain-timeout`; empty for the name of the field."""


def flag(default: Any, text: str, kind: Kind | str | None = None, *, name: str = "", **limits: Any) -> Any:
    """Declare a flag as a field of a dataclass; the default `...` makes it required.

    `kind` may also be the name of the value in the help.
    """
    kind = (kind if isinstance(kind, Kind) else Kind(kind))._replace(**limits)
    metadata = {FLAG: Flag(text, kind, name)}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)
