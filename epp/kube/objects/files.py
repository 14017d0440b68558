# SPDX-License-Identifier: Apache-2.0
"""Object files: YAML or JSON with several documents, single files or directories."""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epp.framework.errors import ConfigurationError
from epp.framework.files import FileContent, read_regular
from epp.framework.plain_yaml import YamlTextError, load_all

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_LIMIT_BYTES = 64 * 1024 * 1024
_DEPTH_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of reading the files; a file in none of the mappings does not exist."""

    contents: Mapping[Path, FileContent]
    unreadable: Mapping[Path, str]
    lost: Mapping[Path, str]
    """Missing configured paths and unreadable directories, with the reason."""

    def reason_missing(self, file: Path) -> str:
        """Return the reason that a file, or one of its parent directories, is missing."""
        return next((self.lost[path] for path in (file, *file.parents) if path in self.lost), "it is gone")


class ObjectFiles:
    def __init__(self, paths: Sequence[str], setting: str = "paths") -> None:
        """Store the paths; raises ConfigurationError with the setting for a missing path."""
        self.paths = tuple(Path(path) for path in paths)
        for path in self.paths:
            try:
                path.stat()
            except OSError as error:
                problem = f"there is neither file nor directory {str(path)!r}: {error.strerror}; correct or create it"
                raise ConfigurationError(f"{setting}: {problem}") from error

    def read(self, known: Iterable[Path] = ()) -> Reading:
        """Read all files; known files are read even if their directory does not list them.

        A file may be missing for a moment while Kubernetes swaps the symbolic links of a ConfigMap.
        """
        files = {file for file in known if _is_file(file)}
        lost: dict[Path, str] = {}
        for path in self.paths:
            try:
                is_directory = stat.S_ISDIR(path.stat().st_mode)
            except OSError as error:
                lost[path] = _loss(error)
            else:
                files.update(_in_directory(path, lost) if is_directory else [path])
        contents: dict[Path, FileContent] = {}
        unreadable: dict[Path, str] = {}
        for file in files:
            try:
                contents[file] = read_regular(file, _LIMIT_BYTES)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                unreadable[file] = f"cannot be read: {error.strerror}"
        return Reading(contents, unreadable, lost)

    def order(self, file: Path) -> tuple[int, Path]:
        """Return the sort key of a file. If two objects have the same name, the one in the later file is used."""
        return max(index for index, path in enumerate(self.paths) if path in {file, *file.parents}), file


def parse(file: Path, content: bytes) -> tuple[object, ...]:
    """Return the non-empty documents in a file; raises ValueError."""
    if len(content) > _LIMIT_BYTES:
        raise ValueError(f"has more than {_LIMIT_BYTES} bytes: split it")
    try:
        if file.suffix == ".json":
            found = tuple(_json_documents(content))
        else:
            found = tuple(each.data for each in load_all(content.decode("utf-8-sig"), _DEPTH_LIMIT))
    except YamlTextError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"neither YAML nor JSON: {' '.join(str(error).split())}") from error
    # The sorted keys of a list from `kubectl get -o yaml`, without the last one.
    if any(isinstance(each, dict) and list(each) == ["apiVersion", "items"] for each in found):
        raise ValueError("the list is truncated, because the kind at its end is missing: write the whole file")
    return found


def _in_directory(directory: Path, lost: dict[Path, str]) -> Iterator[Path]:
    """Yield the object files in a directory; skip hidden directories, which contain the versions of a ConfigMap."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # such a file was removed after it was listed
            lost[Path(error.filename)] = _loss(error)

    for parent, directories, names in os.walk(directory, onerror=failed):
        directories[:] = [name for name in directories if not name.startswith(".")]
        files = (Path(parent, name) for name in names if not name.startswith("."))
        yield from (file for file in files if file.suffix in _SUFFIXES and _is_file(file))


def _is_file(path: Path) -> bool:
    """Return whether the path is a regular file; opening a pipe would block."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _loss(error: OSError) -> str:
    return "it is gone" if isinstance(error, FileNotFoundError) else f"it cannot be read: {error.strerror}"


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {repeated!r:.60} is repeated in one object: remove one of them")
    return found


def _json_documents(content: bytes) -> Iterator[object]:
    decoder = json.JSONDecoder(object_pairs_hook=_unique)
    text, end = content.decode("utf-8-sig").strip(), 0
    while end < len(text):
        document, end = decoder.raw_decode(text, end)
        yield document
        end += len(text[end:]) - len(text[end:].lstrip())
