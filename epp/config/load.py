# SPDX-License-Identifier: Apache-2.0
"""Reads YAML or JSON text into the configuration model, and says where and why it cannot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from reprlib import repr as shortened
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from epp.config.document import Document, Path, Place
from epp.config.model import API_VERSION, KIND, EndpointPickerConfig
from epp.config.problems import InvalidConfigError, Problem
from epp.config.ready_made import sample_texts
from epp.config.repair import NO_GAPS, Gaps, keys_at, meant_by, repaired, unquoted
from epp.config.sources import Source, find_sources, problem_of, read_file
from epp.framework.messages import hint_at

_SHAPES = {
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
    "list_type": "should be a list",
    "string_type": "should be a string",
    "bool_type": "should be true or false",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
}
_EMPTY = EndpointPickerConfig.model_validate({"apiVersion": API_VERSION, "kind": KIND})

DEFAULT_SAMPLE = "adaptive"
"""The sample that runs where no configuration is given."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the text it was read from."""

    model: EndpointPickerConfig
    """Without the parts that have `problems`."""
    origin: str
    document: Document | None = None
    """None for one that no text was read for."""
    text: str = ""
    """The whole file."""
    inside: str = ""
    """Such as `data[epp.yaml] of ConfigMap llm/epp`; empty for one that is no part of another object."""
    problems: tuple[Problem, ...] = ()
    """Mistakes of structure."""
    gaps: Gaps = NO_GAPS
    unreadable: bool = False
    """Whether the problems are all there is."""

    def problem(self, message: str, *path: str | int, remedy: str = "") -> Problem:
        """Return the problem with its place in the text; the path is that of the model."""
        written = self.gaps.in_document(path)
        place = Place() if self.document is None else self.document.place(written)
        return Problem(message, written, place.position, self.origin, remedy, place.inside)


def load_file(path: FilePath) -> LoadedConfig:
    """Return the configuration in a file; raises ConfigurationError that names file, place and problem."""
    return load_text(read_file(path), str(path))


def load_text(text: str, origin: str = "--config-text") -> LoadedConfig:
    """Return the one configuration in a text, which a ConfigMap may wrap; `origin` names it in errors.

    Raises InvalidConfigError for a text that cannot be read, or holds several configurations. Mistakes in one that can
    be read are its `problems`, which `assemble` raises with all others.
    """
    first, *others = load_all(text, origin)
    if others:
        raise InvalidConfigError(one_too_many(first, other) for other in others)
    if first.unreadable:
        raise InvalidConfigError(first.problems)
    return first


def load_all(text: str, origin: str) -> list[LoadedConfig]:
    """Return each configuration in a text; raises InvalidConfigError for a text that cannot be read, or has none."""
    return [_load(source, text, origin) for source in find_sources(text, origin).found]


def one_too_many(first: LoadedConfig, other: LoadedConfig) -> Problem:
    """Return the problem that a file has a second configuration."""
    problem = other.problem(f"a second configuration, beside the one in {first.inside or 'the first document'}")
    return replace(problem, remedy="write the one to use into a file of its own")


def _load(source: Source, text: str, origin: str) -> LoadedConfig:
    faults = tuple(problem_of(fault, origin) for fault in source.faults)
    document = source.document
    if document is None:
        return LoadedConfig(_EMPTY, origin, None, text, source.inside, faults, unreadable=True)
    content: dict[str, Any] = document.content if isinstance(document.content, dict) else {}
    loaded = LoadedConfig(_EMPTY, origin, document, text, source.inside, faults)
    try:
        return replace(loaded, model=EndpointPickerConfig.model_validate(content))
    except ValidationError as error:
        errors = error.errors(include_url=False)
    found = repaired(content, errors)
    places = [tuple(error["loc"]) for error in errors] + [path for path, _ in found.further]
    sentences = _sentences([*errors, *(error for _, error in found.further)])
    problems = [
        loaded.problem(message, *path, remedy=remedy)
        for path, (message, remedy) in zip(places, sentences, strict=True)
        if message
    ]
    return replace(loaded, model=found.model, problems=(*faults, *problems), gaps=found.gaps)


def default_config() -> LoadedConfig:
    """Return what a picker runs when it is given no configuration."""
    return load_text(sample_texts()[DEFAULT_SAMPLE], f"built-in {DEFAULT_SAMPLE}.yaml")


def _sentences(errors: Sequence[ErrorDetails]) -> Iterator[tuple[str, str]]:
    """Yield message and remedy of each error; empty ones for a key that is missing for its misspelling."""
    unknown: dict[Path, list[str]] = {}
    for error in errors:
        if error["type"] == "extra_forbidden":
            unknown.setdefault(tuple(error["loc"][:-1]), []).append(str(error["loc"][-1]))
    for error in errors:
        path = tuple(error["loc"])
        near = [meant_by(key, path[:-1], ()) for key in unknown.get(path[:-1], ())]
        yield ("", "") if error["type"] == "missing" and path[-1] in near else _sentence(error, path)


def _sentence(error: ErrorDetails, path: Path) -> tuple[str, str]:
    """Return message and remedy."""
    kind, value = error["type"], error["input"]
    message, remedy = f"is {shortened(value)}: {_SHAPES.get(kind) or error['msg'].removeprefix('Input ')}", ""
    meant = unquoted(error)
    if kind == "extra_forbidden":
        message, remedy = "unknown key", hint_at(str(path[-1]), keys_at(path[:-1]))
    elif kind == "missing":
        message, remedy = "is missing", "add it"
    elif kind == "value_error":
        message = str(error["ctx"]["error"])
    elif kind == "literal_error":
        message = f"is {value!r}, but takes {error['ctx']['expected']}"
    elif kind == "string_too_short":
        message, remedy = "is empty", "give it a name"
    elif isinstance(value, str) and path[:-1] == ("plugins",):
        remedy = f"write `type: {value}`"
    elif meant is not None:
        remedy = "write it in quotes" if isinstance(meant, str) else "remove the quotes"
    return message, remedy
