"""Cluster objects in files: YAML or JSON, several documents to a file, files or whole directories of them."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from epp.framework.errors import ConfigurationError
from epp.plain_yaml import PlainLoader, refuse_deep_nesting

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_LIMIT_BYTES = 64 * 1024 * 1024
_DEPTH_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Documents:
    """What one file holds."""

    origin: str
    content: tuple[object, ...] = ()
    problem: str = ""
    """Why it could not be read, if so; the others are read all the same."""


class ObjectFiles:
    """Reads the files again only where one of them changed."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Take the paths; raises ConfigurationError for one where there is nothing."""
        self.paths = tuple(Path(path) for path in paths)
        for path in self.paths:
            if not path.exists():
                raise ConfigurationError(
                    f"paths: there is neither file nor directory {str(path)!r}; correct it, or make it"
                )
        self._seen = ""

    def read_changed(self) -> list[Documents] | None:
        """Return the documents of all files; None where nothing changed since the last time."""
        contents = [(str(file), _bytes_of(file)) for file in self._files()]
        digest = hashlib.blake2b()
        for name, content in contents:
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        if digest.hexdigest() == self._seen:
            return None
        self._seen = digest.hexdigest()
        return [_documents(name, content) for name, content in contents]

    def _files(self) -> Iterator[Path]:
        for path in self.paths:
            if path.is_dir():
                yield from sorted(_in_directory(path))
            else:
                yield path


def _in_directory(directory: Path) -> Iterable[Path]:
    """Return its files, not those of hidden ones: a ConfigMap keeps its versions there."""
    return (
        path
        for path in directory.rglob("*")
        if path.suffix in _SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    )


def _bytes_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_LIMIT_BYTES + 1)
    except OSError as error:
        return f"\0{error.strerror}".encode()  # no document begins so


def _documents(origin: str, content: bytes) -> Documents:
    if content.startswith(b"\0"):
        return Documents(origin, problem=f"cannot be read: {content[1:].decode()}")
    if len(content) > _LIMIT_BYTES:
        return Documents(origin, problem=f"has more than {_LIMIT_BYTES} bytes: split it")
    try:
        if origin.endswith(".json"):
            return Documents(origin, tuple(_json_documents(content)))
        text = content.decode("utf-8-sig")
        refuse_deep_nesting(text, _DEPTH_LIMIT)
        return Documents(origin, tuple(each for each in yaml.load_all(text, Loader=PlainLoader) if each is not None))
    except (yaml.YAMLError, msgspec.DecodeError, ValueError, RecursionError) as error:
        return Documents(origin, problem=f"neither YAML nor JSON: {' '.join(str(error).split())}")


def _json_documents(content: bytes) -> Iterator[object]:
    """Yield one document after the other: `kubectl get -o json` writes one, logs write one a line."""
    decoder = json.JSONDecoder()
    text, end = content.decode("utf-8-sig").strip(), 0
    while end < len(text):
        document, end = decoder.raw_decode(text, end)
        yield document
        end += len(text[end:]) - len(text[end:].lstrip())
