"""Lists that a plugin's parameters name by path, in YAML or JSON: read once, when the configuration is."""

from pathlib import Path
from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def read_list(parameter: str, path: str, entry: type[S]) -> tuple[S, ...]:
    """Return the entries of the list in a file; raises ValueError that names the parameter, the file and the place."""
    what = f"{parameter} {path!r}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{what} cannot be read: {error.strerror or error}") from error
    try:
        return tuple(msgspec.yaml.decode(content, type=list[entry]))  # type: ignore[valid-type]  # a type at run time
    except msgspec.ValidationError as error:
        raise ValueError(f"{what} is not as expected: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} is neither YAML nor JSON: {error}") from error
