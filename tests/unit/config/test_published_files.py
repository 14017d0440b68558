# SPDX-License-Identifier: Apache-2.0
"""The plugin reference and the schema: they have everything, and the ready-made files hold to them."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from epp import framework
from epp.cli.app import application
from epp.config.model import config_schema
from epp.config.plugin_reference import plugin_markdown, plugin_reference
from epp.framework import Attribute, Column, DataKey, Parameters, Plugin
from epp.framework.registry import Registry
from epp.framework.snapshot import CORE_COLUMNS

REPOSITORY = Path(__file__).parents[3]
CONFIG = REPOSITORY / "config"
FILES = sorted(CONFIG.glob("*.yaml"))


@pytest.fixture(scope="module")
def entries():
    return plugin_reference(Registry()).plugins


@cache
def published_schema():
    return config_schema(Registry())


def printed(form: str) -> str:
    result = CliRunner().invoke(application(), ["plugins", "--output", form])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_data_that_plugins_can_read_is_exported_and_described():
    listed = re.findall(r"^\| `(\w+)` \| `[\w./-]+` \| .+ \| .+ \| .+ \|$", printed("data"), re.MULTILINE)
    data = {name for name, value in vars(framework).items() if isinstance(value, Column | Attribute | DataKey)}
    assert sorted(listed) == sorted(data)
    assert {column.name for column in CORE_COLUMNS} <= {getattr(framework, name).name for name in listed}


def test_command_prints_the_reference_of_all_plugins(entries):
    assert printed("markdown") == plugin_markdown(entries)


def test_every_plugin_and_parameter_has_a_text(entries):
    def without_text(parameters, prefix):
        for parameter in parameters:
            if not parameter.text:
                yield f"{prefix}{parameter.name}"
            yield from without_text(parameter.fields, f"{prefix}{parameter.name}.")

    assert [entry.type for entry in entries if not entry.text] == []
    assert [name for entry in entries for name in without_text(entry.parameters, f"{entry.type}.")] == []


class OutsiderParameters(Parameters, frozen=True):
    key: bytes = b""
    """Of a type that no plugin here has."""
    names: frozenset[str] = frozenset()
    """Of several."""


class Outsider(Plugin[OutsiderParameters]):
    """Has none of the roles that are shown."""

    plugin_type = "outsider"


def test_plugin_of_other_types_and_roles_is_shown_too():
    registry = Registry({})
    registry.register(Outsider)
    entries = plugin_reference(registry).plugins
    assert [(p.name, p.type, p.text) for p in entries[0].parameters] == [
        ("key", "bytes", "Of a type that no plugin here has."),
        ("names", "list of string", "Of several."),
    ]
    assert "\n## Others\n\n### outsider\n\nHas none of the roles that are shown.\n" in plugin_markdown(entries)


def unnamed(content, schema, path="") -> list[str]:
    """Return the keys of the content that the schema does not name."""
    forms = schema_forms(schema)
    if isinstance(content, list):
        items = next((form["items"] for form in forms if "items" in form), {})
        return [key for index, item in enumerate(content) for key in unnamed(item, items, f"{path}[{index}]")]
    if not isinstance(content, dict):
        return []
    properties = {name: value for form in forms for name, value in form.get("properties", {}).items()}
    for form in forms:
        for one in form.get("allOf", ()):
            if one["if"]["properties"]["type"]["const"] == content.get("type"):
                properties |= one["then"]["properties"]
    free = next((form["additionalProperties"] for form in forms if form.get("additionalProperties")), None)
    found = []
    for key, value in content.items():
        if key in properties:
            found += unnamed(value, properties[key], f"{path}.{key}")
        elif free is None:
            found.append(f"{path}.{key}")
    return found


def schema_forms(schema) -> list[dict]:
    """Return the schemas of which one holds: what is referred to, and each of several."""
    if "$ref" in schema:
        return schema_forms(published_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    return [form for one in schema.get("anyOf", ()) for form in schema_forms(one)] or [schema]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_schema_names_every_key_of_a_ready_made_file(path):
    assert unnamed(yaml.safe_load(path.read_text()), published_schema()) == []


def test_schema_does_not_name_what_no_plugin_takes():
    parameters = {"weights": {"hots": 1}, "topologyProducerName": "x"}
    content = {"plugins": [{"type": "topology-affinity-scorer", "parameters": parameters, "nmae": "x"}]}
    assert unnamed(content, published_schema()) == [".plugins[0].parameters.weights.hots", ".plugins[0].nmae"]


def test_schema_refers_only_to_what_it_defines():
    def references(schema):
        if isinstance(schema, dict):
            yield from ([schema["$ref"]] if "$ref" in schema else [])
            for value in schema.values():
                yield from references(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from references(value)

    assert set(references(published_schema())) <= {f"#/$defs/{name}" for name in published_schema()["$defs"]}
