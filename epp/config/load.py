# SPDX-License-Identifier: Apache-2.0
"""Configurations in files, plain or inside ConfigMaps and Lists, and their model; errors have a place in the text."""

import codecs
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from epp.config.document import Document, InvalidConfigError, NotYamlError, Path, Place, Problem, Text, read_documents
from epp.config.model import API_VERSION, BRANCH, KIND, EndpointPickerConfig, PluginSpec
from epp.framework.files import FileContent, read_regular
from epp.framework.input_errors import remedy_for, shown
from epp.framework.suggestions import hint_at, nearest

_VERSIONS = get_args(EndpointPickerConfig.model_fields["api_version"].annotation)
_KEYS = {each.alias or name for name, each in EndpointPickerConfig.model_fields.items()} - {"apiVersion", "kind"}
_BEGINNING = f"begin with apiVersion: {API_VERSION} and kind: {KIND}"
_UTF_32, _UTF_16 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SHOWN_KEYS = 5
LIMIT_BYTES = 16 * 1024 * 1024
"""Maximum size of a file; larger than any object of a cluster."""


class NoConfigError(InvalidConfigError):
    """A text without any configuration."""


class Source(NamedTuple):
    document: Document | None
    """None for an unreadable text."""
    inside: str = ""
    """The enclosing object, such as `data[epp.yaml] of ConfigMap llm/epp`; empty for none."""
    faults: tuple[Problem, ...] = ()
    """Errors of the text itself."""


def read_file(path: FilePath) -> str:
    """Return the text of a file; raises InvalidConfigError with file, place and remedy."""
    try:
        data = path.read_bytes() if path.is_fifo() else read_regular(path, LIMIT_BYTES).data
    except OSError as error:
        raise _unreadable(error, path) from error
    return decoded(data, str(path))


def read_again(path: FilePath) -> FileContent:
    """Return the content of a followed file without waiting for a pipe; raises InvalidConfigError."""
    try:
        return read_regular(path, LIMIT_BYTES)
    except OSError as error:
        raise _unreadable(error, path) from error


def _unreadable(error: OSError, path: FilePath) -> InvalidConfigError:
    problem, _, remedy = (error.strerror or str(error)).partition(": ")
    return InvalidConfigError([Problem(f"cannot be read: {problem}", origin=str(path), remedy=remedy)])


def decoded(data: bytes, origin: str) -> str:
    """Decode UTF-8, without a byte order mark; raises InvalidConfigError."""
    if len(data) > LIMIT_BYTES:
        raise _no_text(f"has more than {LIMIT_BYTES} bytes", origin, remedy="name a configuration")
    if data.startswith(_UTF_32 + _UTF_16):
        raise _no_text(f"is {'UTF-32' if data.startswith(_UTF_32) else 'UTF-16'}", origin, remedy="save it as UTF-8")
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


def _search(document: Document) -> Iterator[Source | str]:
    """Yield the configurations in a document, and descriptions of other objects."""
    content = document.content
    kind = content.get("kind") if isinstance(content, dict) else None
    if isinstance(content, dict) and kind == "ConfigMap":
        yield from _search_config_map(document, content)
    elif isinstance(content, dict) and kind in ("List", "ConfigMapList") and isinstance(content.get("items"), list):
        for index in range(len(content["items"])):
            yield from _search(document.part("items", index))
    elif isinstance(content, dict) and _is_config(content):
        yield Source(document, "", document.faults)
    else:
        yield _described(content)


def _search_config_map(document: Document, content: dict[str, object]) -> Iterator[Source | str]:
    data = content.get("data")
    name = _described(content)
    found: list[Source] = []
    for key in data if isinstance(data, dict) else ():
        text = document.part("data", key).quoted(f"data[{key}]")
        if text is not None:
            found += _quoted(text, f"data[{key}] of {name}")
    yield from found
    if not found:
        keys = ", ".join([*data][:_SHOWN_KEYS]) if isinstance(data, dict) else ""
        yield f"{name} with {f'the keys {keys}' if keys else 'no data'}"


def _quoted(text: Text, inside: str) -> Iterator[Source]:
    try:
        documents = read_documents(text)
    except NotYamlError as error:
        if KIND in text.text:
            yield Source(None, inside, (error.fault,))
        return
    for document in documents:
        if isinstance(document.content, dict) and _is_config(document.content):
            yield Source(document, inside, document.faults)


def _is_config(content: dict[str, object]) -> bool:
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


_PLACES = (FilePath(__file__).parents[1] / "ready_made", FilePath(__file__).parents[2] / "config")
DIRECTORY = next((place for place in _PLACES if place.is_dir()), _PLACES[-1])
_EXPECTED_TYPES: Mapping[str, object] = {
    "dict_type": dict,
    "model_type": dict,
    "list_type": list,
    "string_type": str,
    "bool_type": bool,
    "int_type": int,
    "float_type": float,
}
"""Type of plain data, by the kind of error."""
_EMPTY = EndpointPickerConfig.model_validate({"apiVersion": API_VERSION, "kind": KIND})
DEFAULT_SAMPLE = "adaptive"
"""Name of the ready-made configuration that is used by default."""


def sample_texts() -> Mapping[str, str]:
    """Return the text of each file by its name without `.yaml`, in order of the names."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(DIRECTORY.glob("*.yaml"))}


def summary(text: str) -> str:
    """Return the first line of a file, a comment with one sentence."""
    return text.partition("\n")[0].removeprefix("# ")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    model: EndpointPickerConfig
    """Empty if there are `problems`."""
    origin: str
    document: Document | None = None
    """None without a text."""
    text: str = ""
    """The whole file."""
    inside: str = ""
    """The enclosing object, such as `data[epp.yaml] of ConfigMap llm/epp`; empty for none."""
    problems: tuple[Problem, ...] = ()
    """Mistakes of structure."""
    readable_plugins: Mapping[int, PluginSpec] = field(default_factory=dict)
    """The entries of `plugins` without mistakes of structure, by index, if there are `problems`."""

    def problem(self, message: str, *path: str | int, remedy: str = "") -> Problem:
        """Return a problem with its place in the text."""
        place = Place() if self.document is None else self.document.place(path)
        return Problem(message, path, place.position, self.origin, remedy, place.inside)


def load_file(path: FilePath) -> LoadedConfig:
    """Load the configuration in a file; raises ConfigurationError with file, place and problem."""
    return load_text(read_file(path), str(path))


def load_text(text: str, origin: str = "--config-text") -> LoadedConfig:
    """Load the only configuration in a text, perhaps inside a ConfigMap; `origin` names the text in errors.

    Raises InvalidConfigError for an unreadable text or several configurations. Other errors are the `problems` of the
    configuration: `assemble` raises them together with its own.
    """
    first, *others = load_all(text, origin)
    if others:
        raise InvalidConfigError(one_too_many(first, other) for other in others)
    if first.document is None:
        raise InvalidConfigError(first.problems)
    return first


def load_all(text: str, origin: str) -> list[LoadedConfig]:
    """Load each configuration in a text; raises InvalidConfigError for one that is not YAML or has none."""
    try:
        documents = read_documents(Text(text))
    except NotYamlError as error:
        raise InvalidConfigError([replace(error.fault, origin=origin)]) from error
    if not documents:
        raise NoConfigError([Problem("is empty", origin=origin, remedy=_BEGINNING)])
    found = [each for document in documents for each in _search(document)]
    sources = [each for each in found if isinstance(each, Source)]
    if not sources:
        problem = f"contains no {KIND}, but {', '.join(each for each in found if isinstance(each, str))}"
        raise NoConfigError([Problem(problem, origin=origin, remedy=_BEGINNING)])
    return [_load(source, text, origin) for source in sources]


def one_too_many(first: LoadedConfig, other: LoadedConfig) -> Problem:
    """Return the problem that a file has a second configuration."""
    problem = other.problem(f"a second configuration, after the one in {first.inside or 'the first document'}")
    return replace(problem, remedy="write the one to use into a separate file")


def _load(source: Source, text: str, origin: str) -> LoadedConfig:
    faults = tuple(replace(fault, origin=origin) for fault in source.faults)
    document = source.document
    if document is None:
        return LoadedConfig(_EMPTY, origin, None, text, source.inside, faults)
    content: dict[str, Any] = document.content if isinstance(document.content, dict) else {}
    loaded = LoadedConfig(_EMPTY, origin, document, text, source.inside)
    problems: tuple[Problem, ...] = ()
    try:
        model = EndpointPickerConfig.model_validate(content)
    except ValidationError as error:
        model = _EMPTY
        errors = error.errors(include_url=False)
        problems = tuple(loaded.problem(text, *path, remedy=remedy) for path, text, remedy in _explained(errors))
    if not faults and not problems:
        return replace(loaded, model=model)
    return replace(loaded, problems=(*faults, *problems), readable_plugins=_readable_plugins(content))


def _readable_plugins(content: Mapping[str, Any]) -> Mapping[int, PluginSpec]:
    entries = content.get("plugins")
    found = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        with suppress(ValidationError):
            found[index] = PluginSpec.model_validate(entry)
    return found


def default_config() -> LoadedConfig:
    """Return the configuration that is used without a file."""
    return load_text(sample_texts()[DEFAULT_SAMPLE], f"built-in {DEFAULT_SAMPLE}.yaml")


def _explained(errors: list[ErrorDetails]) -> Iterator[tuple[Path, str, str]]:
    """Yield path, message and remedy of each error, except for a key that is missing because it is misspelt."""
    misspelt: set[Path] = set()
    for error in errors:
        error["loc"] = tuple(step for step in error["loc"] if not str(step).startswith(BRANCH))
        *around, key = error["loc"]
        if error["type"] == "extra_forbidden" and (meant := nearest(str(key), _keys_at(tuple(around)))) is not None:
            misspelt.add((*around, meant))
    for error in errors:
        path = tuple(error["loc"])
        if error["type"] != "missing" or path not in misspelt:
            yield path, *_sentence(error, path)


def _keys_at(path: Path) -> list[str]:
    """Return the allowed keys of the mapping at this path."""
    model: Any = EndpointPickerConfig
    for step, following in pairwise((*path, "")):
        if isinstance(step, str):
            fields = {one.alias or name: one.annotation for name, one in model.model_fields.items()}
            model = _model_within(fields.get(step), is_listed=isinstance(following, int))
    return [one.alias or name for name, one in model.model_fields.items()]


def _model_within(annotation: Any, *, is_listed: bool) -> type[BaseModel]:
    """Return the model in `Model`, `Model | None` or `list[Model]`, or one of those in `Model | list[Other]`."""
    if (origin := get_origin(annotation)) in {list, Union, types.UnionType, Annotated}:
        inner = [one for one in get_args(annotation) if one is not types.NoneType]
        is_last = is_listed and origin in {Union, types.UnionType}
        return _model_within(inner[-1 if is_last else 0], is_listed=is_listed)
    model: type[BaseModel] = annotation
    return model


def _sentence(error: ErrorDetails, path: Path) -> tuple[str, str]:
    """Return message and remedy."""
    kind, value = error["type"], error["input"]
    found = f"is {shown(value)}"
    match kind:
        case "extra_forbidden":
            message, remedy = "unknown key", hint_at(str(path[-1]), _keys_at(path[:-1]))
        case "missing":
            message, remedy = "is missing", "add it"
        case "value_error":
            message, remedy = str(error["ctx"]["error"]), ""
        case "literal_error":
            message, remedy = f"is {value!r}, but must be {error['ctx']['expected']}", ""
        case "string_too_short":
            message, remedy = "is empty", "give it a name"
        case "model_type" if isinstance(value, str) and path[:-1] == ("plugins",):
            message, remedy = found, f"write `type: {value}`"
        case _ if kind in _EXPECTED_TYPES:
            message, remedy = found, remedy_for(value, [_EXPECTED_TYPES[kind]])
        case _:
            message, remedy = f"{found}: {error['msg'].removeprefix('Input ')}", ""
    return message, remedy
