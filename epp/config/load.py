"""Reads YAML or JSON text into the configuration model, and says where and why it cannot."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from epp.config.model import EndpointPickerConfig
from epp.framework import ConfigurationError


def load_file(path: Path) -> EndpointPickerConfig:
    """Return the configuration in a file; raises ConfigurationError that names file, place and problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {path} cannot be read: {error}") from error
    return load_text(text, str(path))


def load_text(text: str, origin: str = "--config-text") -> EndpointPickerConfig:
    """Return the configuration in a text; `origin` names it in errors."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  a subclass of the safe loader
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{origin} is not YAML: {_in_one_line(error)}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{origin} holds no mapping: it must start with apiVersion and kind")
    try:
        return EndpointPickerConfig.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in error.errors(include_url=False))
        raise ConfigurationError(f"{origin}: {problems}") from error


def _in_one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _place(location: tuple[int | str, ...]) -> str:
    """Write `plugins[0].type` for ("plugins", 0, "type")."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".") or "document"


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML would take the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  yaml calls it so
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
