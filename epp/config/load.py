# SPDX-License-Identifier: Apache-2.0
"""Reads YAML or JSON text into the configuration model, and says where and why it cannot."""

import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path as FilePath
from reprlib import repr as shortened
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from epp.config.document import Document, NotYamlError, Path
from epp.config.model import API_VERSION, KIND, EndpointPickerConfig
from epp.config.problems import InvalidConfigError, Problem, in_order_of_the_file
from epp.framework import ConfigurationError
from epp.framework.hints import hint_at

_SHAPES = {
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
    "list_type": "should be a list",
    "string_type": "should be a string",
    "bool_type": "should be true or false",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
}
_DEFAULT_WEIGHTS = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the text it was read from."""

    model: EndpointPickerConfig
    origin: str
    document: Document | None = None
    """None for one that no text was read for."""

    def problem(self, message: str, *path: str | int) -> Problem:
        """Return the problem with its place in the text."""
        position = None if self.document is None else self.document.position(path)
        return Problem(message, path, position, self.origin)


def load_file(path: FilePath) -> LoadedConfig:
    """Return the configuration in a file; raises ConfigurationError that names file, place and problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {path} cannot be read: {error}") from error
    return load_text(text, str(path))


def load_text(text: str, origin: str = "--config-text") -> LoadedConfig:
    """Return the configuration in a text; `origin` names it in errors.

    Raises InvalidConfigError with all that is wrong.
    """
    try:
        document = Document(text)
    except NotYamlError as error:
        raise InvalidConfigError([Problem(f"is not YAML: {error}", (), error.position, origin)]) from error
    if not isinstance(document.content, dict):
        message = f"holds no mapping: it must start with apiVersion: {API_VERSION} and kind: {KIND}"
        raise InvalidConfigError([Problem(message, origin=origin)])
    try:
        model = EndpointPickerConfig.model_validate(document.content)
    except ValidationError as error:
        raise InvalidConfigError(_problems(error.errors(include_url=False), document, origin)) from error
    return LoadedConfig(model, origin, document)


def default_config() -> LoadedConfig:
    """Return what a picker runs when it is given no configuration: short queues, free KV cache, known prefixes."""
    refs = [{"pluginRef": name, "weight": weight} for name, weight in _DEFAULT_WEIGHTS.items()]
    content = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "plugins": [{"type": name} for name in _DEFAULT_WEIGHTS],
        "schedulingProfiles": [{"name": "default", "plugins": refs}],
    }
    return LoadedConfig(EndpointPickerConfig.model_validate(content), "built-in default")


def _problems(errors: Iterable[ErrorDetails], document: Document, origin: str) -> list[Problem]:
    found = []
    for error in errors:
        path = tuple(error["loc"])
        found.append(Problem(_sentence(error, path), path, document.position(path), origin))
    return in_order_of_the_file(found)


def _sentence(error: ErrorDetails, path: Path) -> str:
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key; {hint_at(str(path[-1]), _keys(path[:-1]))}"
        case "missing":
            return "is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            return f"is {error['input']!r}, but takes {error['ctx']['expected']}"
        case "string_too_short":
            return "is empty"
        case kind:
            due = _SHAPES.get(kind) or error["msg"].removeprefix("Input ")
            return f"is {shortened(error['input'])}: {due}"


def _keys(path: Path) -> list[str]:
    """Return the keys that the mapping at this path takes."""
    model: Any = EndpointPickerConfig
    for step in path:
        if isinstance(step, str):
            fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = _model_within(fields.get(step))
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_within(annotation: Any) -> type[BaseModel]:
    """Return the model in `Model`, `Model | None` or `list[Model]`."""
    if get_origin(annotation) in {list, Union, types.UnionType}:
        return next(_model_within(inner) for inner in get_args(annotation) if inner is not types.NoneType)
    model: type[BaseModel] = annotation
    return model
