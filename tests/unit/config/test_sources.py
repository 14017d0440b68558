# SPDX-License-Identifier: Apache-2.0
"""Configurations are found in what wraps them, and their mistakes placed in the file that was read."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epp.config import Builder, InvalidConfigError, assemble, load_file, load_text
from epp.config.document import written
from epp.config.load import load_all
from epp.framework import ManualClock
from epp.framework.registry import Registry

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
  nmae: q
"""
CONFIG_MAP = """\
# rendered by a chart
apiVersion: v1
kind: ConfigMap
metadata: {{name: epp, namespace: llm}}
data:
  notes.txt: "not: [yaml"
  epp.yaml: {style}
{text}
"""


def indented(text, by):
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.split("\n"))


def problems(text):
    with pytest.raises(InvalidConfigError) as caught:
        assemble(load_text(text, "c.yaml"), Builder(Registry(), ManualClock()))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("style", ["|", "|-", "|+", "|  # the configuration"])
def test_config_map_is_read_and_its_mistakes_are_placed_in_the_file(style):
    text = CONFIG_MAP.format(style=style, text=indented(CONFIG, 4))
    (loaded,) = load_all(text, "c.yaml")
    assert loaded.inside == "data[epp.yaml] of ConfigMap llm/epp"
    line = text[: text.index("nmae")].count("\n") + 1
    assert problems(text) == [f"c.yaml:{line}:7: plugins[0].nmae: unknown key; did you mean 'name'?"]


@pytest.mark.parametrize(
    "write",
    [
        lambda content: json.dumps(content, indent=2),
        lambda content: yaml.safe_dump(content, default_style='"'),
        lambda content: yaml.safe_dump(content, default_style="'"),
    ],
)
def test_text_that_the_file_does_not_show_line_by_line_is_placed_by_its_key_and_its_own_line(write):
    content = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"epp.yaml": CONFIG}}
    text = write(content)
    (problem,) = problems(text)
    place, _, rest = problem.partition(": ")
    assert rest == "line 5 of data[epp.yaml]: plugins[0].nmae: unknown key; did you mean 'name'?"
    line = text.split("\n")[int(place.split(":")[1]) - 1]
    assert "epp.yaml" in line


def test_list_of_objects_and_other_documents_are_searched():
    config_map = yaml.safe_load(CONFIG_MAP.format(style="|", text=indented(CONFIG, 4)))
    others = [{"kind": "Service", "metadata": {"name": "s"}}, {"kind": "ConfigMap", "data": {"x": "1"}}, "text"]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*others, config_map]})
    (loaded,) = load_all(text, "c.yaml")
    assert loaded.inside == "data[epp.yaml] of ConfigMap llm/epp"
    assert loaded.readable_plugins == {}  # its only plugin has a misspelt key
    text = f"kind: Service\n---\n{CONFIG}---\n# nothing\n---\nkind: Deployment\n"
    assert problems(text) == ["c.yaml:7:3: plugins[0].nmae: unknown key; did you mean 'name'?"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{CONFIG}---\n{CONFIG}", "c.yaml:7:1: a second configuration, after the one in the first document; write"),
        (
            yaml.safe_dump({"kind": "ConfigMap", "data": {"a": CONFIG, "b": CONFIG}}),
            "c.yaml:4:6: line 1 of data[b]: a second configuration, after the one in data[a] of ConfigMap; write the",
        ),
        ("kind: ConfigMap\ndata: {a: x}\n", "c.yaml: contains no EndpointPickerConfig, but ConfigMap with the keys a;"),
        ("kind: ConfigMap\n", "c.yaml: contains no EndpointPickerConfig, but ConfigMap with no data; begin"),
        (
            "kind: Service\nmetadata: {name: s}\n---\nkind: Pod\n",
            "c.yaml: contains no EndpointPickerConfig, but Service s, Pod; begin with apiVersion: llm-d.ai/v1alpha1",
        ),
        (
            "kind: ConfigMap\ndata:\n  e: |\n    kind: EndpointPickerConfig\n    plugins: [\n",
            "c.yaml:5:5: is not valid YAML: a value is missing, or a bracket is not closed",
        ),
        (
            "kind: ConfigMap\ndata:\n  e: |\n    kind: EndpointPickerConfig\n    plugins:\n    \t- type: x\n",
            "c.yaml:6:5: is not valid YAML: a tab in the indentation; write spaces",
        ),
    ],
)  # fmt: skip
def test_file_to_run_holds_one_configuration(text, problem):
    (found,) = problems(text)
    assert found.startswith(problem)


def test_kind_with_a_mistake_is_told_as_one():
    text = CONFIG.replace("kind: EndpointPickerConfig", "kind: EndpointPickrConfig").replace("nmae", "name")
    (found,) = problems(text)
    assert found.startswith("c.yaml:2:1: kind: is 'EndpointPickrConfig', but must be 'EndpointPickerConfig'")


def test_tab_in_an_indentation_is_told_and_those_between_tokens_are_read():
    text = "kind: EndpointPickerConfig\nplugins:\n- type:\ta\n\tname: b\n"
    assert problems(text) == ["c.yaml:4:1: is not valid YAML: a tab in the indentation; write spaces"]
    text = CONFIG.replace("type: queue-scorer", "type:\tqueue-scorer\t# a remark").replace("  nmae: q\n", "")
    assert load_text(text).model.plugins[0].type == "queue-scorer"


def test_key_that_stands_twice_is_told_beside_other_mistakes():
    assert problems(CONFIG + "  type: random-picker\nkind: x\n") == [
        "c.yaml:5:3: plugins[0].nmae: unknown key; did you mean 'name'?",
        "c.yaml:6:3: key 'type' is repeated; remove one of them, or join them",
        "c.yaml:7:1: key 'kind' is repeated; remove one of them, or join them",
        "c.yaml:7:1: kind: is 'x', but must be 'EndpointPickerConfig'",
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty; begin with apiVersion: llm-d.ai/v1alpha1 and kind: EndpointPickerConfig"),
        (b"\xef\xbb\xbf", "is empty; begin with"),
        (CONFIG.encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (CONFIG.encode("utf-32"), "is UTF-32; save it as UTF-8"),
        (b"kind: a\nname: caf\xe9\n", "2:10: is not UTF-8: byte 0xe9; save it as UTF-8"),
        ("kind: é".encode() + b"\xff", "1:8: is not UTF-8: byte 0xff; save it as UTF-8"),
        (b"\x7fELF\x02\x00\x00", "1:6: is not a text file; name a YAML or JSON file"),
    ],
)
def test_file_that_is_no_text_says_why(tmp_path, data, problem):
    file = tmp_path / "c.yaml"
    file.write_bytes(data)
    with pytest.raises(InvalidConfigError) as caught:
        load_file(file)
    assert str(caught.value).removeprefix(f"{file}:").lstrip().startswith(problem)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("missing", "cannot be read: No such file"), (".", "cannot be read: it is a directory; name a file in it")],
)
def test_path_without_a_file_says_so(tmp_path, name, problem):
    with pytest.raises(InvalidConfigError) as caught:
        load_file(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: {problem}")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_and_line_ends_change_no_place(tmp_path, end, mark):
    file = tmp_path / "c.yaml"
    for text, line, column in ((CONFIG, 5, 3), (CONFIG_MAP.format(style="|", text=indented(CONFIG, 4)), 12, 7)):
        file.write_bytes(mark + text.replace("\n", end).encode())
        with pytest.raises(InvalidConfigError) as caught:
            assemble(load_file(file), Builder(Registry(), ManualClock()))
        (problem,) = caught.value.problems
        assert (written(problem.path), problem.position.line, problem.position.column) == (
            "plugins[0].nmae", line, column,
        )  # fmt: skip


@given(
    lines=st.lists(
        st.sampled_from(["", "# remark", "  # indented remark", "featureGates: []"]), max_size=5, unique=True
    ),
    by=st.integers(1, 9),
    style=st.sampled_from(["|", "|-", "|+"]),
)
def test_literal_blocks_are_placed_however_they_are_indented(lines, by, style):
    text = "\n".join([*CONFIG.split("\n")[:2], *lines, *CONFIG.split("\n")[2:]])
    outer = f"kind: ConfigMap\ndata:\n e: {style}\n{indented(text, by + 1)}"
    (problem,) = problems(outer)
    position = problem.split(":")
    place = outer[: outer.index("nmae")]
    assert position[1:3] == [str(place.count("\n") + 1), str(len(place) - place.rfind("\n"))]
