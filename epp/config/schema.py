# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of a configuration file, parameters of every plugin type included, for editors to check against."""

import inspect
from typing import Any

import msgspec

from epp.config.model import EndpointPickerConfig
from epp.config.upstream import WITHOUT_TASK
from epp.framework.registry import Registry

_LARGEST_WRITTEN_OUT = 1e15
_REFERENCES = "#/$defs/{name}"


def config_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema; plugin types that cannot be loaded are left out."""
    schema = EndpointPickerConfig.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    classes, _ = registry.load_all()
    structs = list(dict.fromkeys(cls.parameters_type for cls in classes.values()))  # in the order of the types
    schemas, components = msgspec.json.schema_components(
        structs, schema_hook=lambda _: {"$comment": "anything"}, ref_template=_REFERENCES
    )
    by_struct = dict(zip(structs, schemas, strict=True))
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    definitions = schema["$defs"]
    definitions.update(dict(sorted(components.items())))
    spec = definitions["PluginSpec"]
    spec["properties"]["type"] = {
        "description": spec["properties"]["type"]["description"],
        "anyOf": [
            {"enum": sorted({*classes, *WITHOUT_TASK})},
            {"type": "string", "pattern": "^[\\w.]+:\\w+$"},
        ],
    }
    spec["allOf"] = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"properties": {"parameters": by_struct[cls.parameters_type]}},
        }
        for name, cls in sorted(classes.items())
    ]
    cleaned: dict[str, Any] = _with_clean_texts(schema)
    return cleaned


def _with_clean_texts(part: Any) -> Any:
    """Return the same with descriptions as every version of Python gives them: without the code's indentation.

    Whole numbers are written as such: which of two equal limits, 100 or 100.0, a type has depends on what was imported.
    """
    if isinstance(part, dict):
        return {
            key: inspect.cleandoc(value)
            if key == "description" and isinstance(value, str)
            else _with_clean_texts(value)
            for key, value in part.items()
        }
    if isinstance(part, float) and part.is_integer() and abs(part) < _LARGEST_WRITTEN_OUT:
        return int(part)
    return [_with_clean_texts(item) for item in part] if isinstance(part, list) else part
