# SPDX-License-Identifier: Apache-2.0
"""The configurations in a file: plain ones, and those inside ConfigMaps and Lists."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import yaml

from epp.config.document import (
    Document,
    Fault,
    InvalidConfigError,
    NotYamlError,
    Problem,
    Quotation,
    Text,
    read_documents,
)
from epp.config.model import API_VERSION, KIND, EndpointPickerConfig
from epp.framework.files import FileContent, read_regular
from epp.framework.messages import nearest

_VERSIONS = get_args(EndpointPickerConfig.model_fields["api_version"].annotation)
_KEYS = {each.alias or name for name, each in EndpointPickerConfig.model_fields.items()} - {"apiVersion", "kind"}
_BEGINNING = f"begin with apiVersion: {API_VERSION} and kind: {KIND}"
_OTHER_ENCODINGS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_SHOWN_KEYS = 5
LIMIT_BYTES = 16 * 1024 * 1024
"""Limit of a file; larger than any object of a cluster."""


class NoConfigError(InvalidConfigError):
    """A text without any configuration."""


@dataclass(frozen=True, slots=True)
class Source:
    document: Document | None
    """None for an unreadable text."""
    inside: str = ""
    """The enclosing object, such as `data[epp.yaml] of ConfigMap llm/epp`; empty for none."""
    faults: tuple[Fault, ...] = ()
    """Errors of the text itself."""


@dataclass(slots=True)
class Sources:
    """All configurations in a text, and its other documents."""

    found: list[Source] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Descriptions of other objects."""


def read_file(path: Path) -> str:
    """Return the text of a file; raises InvalidConfigError with file, place and remedy."""
    try:
        data = path.read_bytes() if path.is_fifo() else read_regular(path, LIMIT_BYTES).data
    except OSError as error:
        raise _unreadable(error, path) from error
    return decoded(data, str(path))


def read_again(path: Path) -> FileContent:
    """Return the content of a followed file without waiting for a pipe; raises InvalidConfigError."""
    try:
        return read_regular(path, LIMIT_BYTES)
    except OSError as error:
        raise _unreadable(error, path) from error


def _unreadable(error: OSError, path: Path) -> InvalidConfigError:
    problem, _, remedy = (error.strerror or str(error)).partition(": ")
    return InvalidConfigError([Problem(f"cannot be read: {problem}", origin=str(path), remedy=remedy)])


def decoded(data: bytes, origin: str) -> str:
    """Decode UTF-8, without a byte order mark; raises InvalidConfigError."""
    if len(data) > LIMIT_BYTES:
        raise _no_text(f"has more than {LIMIT_BYTES} bytes", origin, remedy="name a configuration")
    for mark, encoding in _OTHER_ENCODINGS:
        if data.startswith(mark):
            raise _no_text(f"is {encoding}", origin, remedy="save it as UTF-8")
    at = data.find(b"\0")
    if at >= 0:
        raise _no_text("is not a text file", origin, data[:at], remedy="name a YAML or JSON file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8: byte 0x{data[error.start]:02x}"
        raise _no_text(problem, origin, data[: error.start], remedy="save it as UTF-8") from error


def _no_text(problem: str, origin: str, before: bytes | None = None, *, remedy: str) -> InvalidConfigError:
    position = None
    if before is not None:
        text = before.decode("utf-8-sig", errors="replace")
        position = Text(text).position(len(text))
    return InvalidConfigError([Problem(problem, position=position, origin=origin, remedy=remedy)])


def find_sources(text: str, origin: str) -> Sources:
    """Find all configurations in a text; raises InvalidConfigError for a text that is not YAML or has none."""
    try:
        documents = read_documents(Text(text))
    except NotYamlError as error:
        raise InvalidConfigError(problem_of(fault, origin) for fault in error.faults) from error
    if not documents:
        raise NoConfigError([Problem("is empty", origin=origin, remedy=_BEGINNING)])
    sources = Sources()
    for document in documents:
        _search(document, sources)
    if not sources.found:
        problem = f"holds no {KIND}, but {', '.join(sources.skipped)}"
        raise NoConfigError([Problem(problem, origin=origin, remedy=_BEGINNING)])
    return sources


def problem_of(fault: Fault, origin: str) -> Problem:
    """Convert an error of the text to a problem."""
    return Problem(fault.message, (), fault.place.position, origin, fault.remedy, fault.place.inside)


def _search(document: Document, sources: Sources) -> None:
    content = document.content
    kind = content.get("kind") if isinstance(content, dict) else None
    if isinstance(content, dict) and kind == "ConfigMap":
        _search_config_map(document, content, sources)
    elif isinstance(content, dict) and kind in ("List", "ConfigMapList") and isinstance(content.get("items"), list):
        for index in range(len(content["items"])):
            _search(document.part("items", index), sources)
    elif isinstance(content, dict) and _is_meant(content):
        sources.found.append(Source(document, "", document.faults))
    else:
        sources.skipped.append(_described(content))


def _search_config_map(document: Document, content: dict[str, object], sources: Sources) -> None:
    data = content.get("data")
    name = _described(content)
    before = len(sources.found)
    for key in data if isinstance(data, dict) else ():
        quoted = document.part("data", key)
        if isinstance(quoted.node, yaml.ScalarNode) and isinstance(quoted.content, str):
            within = Quotation.of(f"data[{key}]", quoted.node, document.source)
            sources.found += _quoted(quoted.content, f"data[{key}] of {name}", within)
    if len(sources.found) == before:
        keys = ", ".join([*data][:_SHOWN_KEYS]) if isinstance(data, dict) else ""
        sources.skipped.append(f"{name} with {f'the keys {keys}' if keys else 'no data'}")


def _quoted(text: str, inside: str, within: Quotation) -> Iterator[Source]:
    try:
        documents = read_documents(Text(text, within))
    except NotYamlError as error:
        if KIND in text:
            yield Source(None, inside, error.faults)
        return
    for document in documents:
        if isinstance(document.content, dict) and _is_meant(document.content):
            yield Source(document, inside, document.faults)


def _is_meant(content: dict[str, object]) -> bool:
    """Whether a mapping is a configuration, perhaps with errors."""
    kind = content.get("kind")
    named = isinstance(kind, str) and nearest(kind, [KIND]) is not None
    return named or content.get("apiVersion") in _VERSIONS or not _KEYS.isdisjoint(content)


def _described(content: object) -> str:
    """Return a description such as `ConfigMap llm/epp`."""
    if not isinstance(content, dict):
        return f"a {'list' if isinstance(content, list) else 'value'}"
    metadata = content.get("metadata")
    parts = [metadata.get(key) for key in ("namespace", "name")] if isinstance(metadata, dict) else []
    kind = content.get("kind")
    name = "/".join(str(part) for part in parts if part)
    return " ".join(part for part in (kind if isinstance(kind, str) else "a mapping", name) if part)
