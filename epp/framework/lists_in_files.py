# SPDX-License-Identifier: Apache-2.0
"""Lists that a plugin's parameters name by path, in YAML or JSON: read once, when the configuration is."""

from pathlib import Path
from typing import TypeVar, cast

import msgspec

from epp.framework.parameters import ParameterError, read_struct
from epp.framework.regular_files import read_regular

_MOST_BYTES = 16 * 1024 * 1024

S = TypeVar("S", bound=msgspec.Struct)


def read_list(parameter: str, path: str, entry: type[S]) -> tuple[S, ...]:
    """Return the entries of the list in a file; raises ValueError that names the parameter, the file and the place."""
    what = f"{parameter} {path!r}"
    try:
        content = read_regular(Path(path), _MOST_BYTES).data
    except OSError as error:
        raise ValueError(f"{what} cannot be read: {error.strerror or error}") from error
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{what} has more than {_MOST_BYTES} bytes: leave entries out")
    try:
        found = msgspec.yaml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} is neither YAML nor JSON: {error}") from error
    if not isinstance(found, list):
        raise ValueError(f"{what} holds no list; begin each entry with `- `")  # noqa: TRY004  what plugins raise
    whole = msgspec.defstruct("ListInFile", [("entries", tuple[entry, ...])])  # type: ignore[valid-type]  # a type at run time
    try:
        (entries,) = msgspec.structs.astuple(read_struct(whole, {"entries": found}))
    except ParameterError as error:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path[1:])
        raise ValueError(f"{what}, {place}: {error}") from error
    return cast("tuple[S, ...]", entries)
