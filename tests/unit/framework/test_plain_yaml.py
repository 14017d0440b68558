# SPDX-License-Identifier: Apache-2.0
"""YAML from outside: what could end the process, or hide a part of itself, is refused with its line."""

import pytest

from epp.framework.plain_yaml import YamlTextError, load, load_all

DOUBLED = "a: &a0 [x]\n" + "".join(f"b{i}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(60))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 17, "line 1: nested more than 16 deep"),
        ("a:\n" * 3 + "  b: 1\n", "line 2: key 'a' is repeated: remove one of them"),
        ("- {x: 1}\n- {x: 1, y: {x: 2}, x: 3}\n", "line 2: key 'x' is repeated"),
        ("a: {b: {c: 1}, d: [1, {e: 2}]}\nf: 1\na: 2\n", "line 3: key 'a' is repeated"),
        (DOUBLED, r"line \d+: its aliases expand to more than 1000000 values: write fewer"),
        ("a: 1\nb: &b {c: [*b]}\n", "line 2: an alias is inside its own anchor"),
    ],
)
def test_unsafe_text_is_refused_with_its_line(text, problem):
    with pytest.raises(YamlTextError, match=f"^{problem}"):
        load(text, 16)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: [1\nc: 2\n", "line 2: neither YAML nor JSON: [ is not closed, or a comma is missing"),
        ("a:\n\tb: 1\n", "line 2: neither YAML nor JSON: a tab in the indentation: write spaces"),
        ("a: 1\nb: \x01\n", "line 2: neither YAML nor JSON: character U+0001 is not allowed"),
        ("a: 1\nb: \ud800\n", "line 2: neither YAML nor JSON: character U+D800 is not allowed"),
        ("a: 1\nb: !!int many\n", "line 2: neither YAML nor JSON: 'many' is not a valid int"),
        ("a: 1\nb: *nobody\n", "line 2: neither YAML nor JSON: found undefined alias"),
    ],
)
def test_text_that_is_not_yaml_is_refused_with_its_line(text, problem):
    with pytest.raises(YamlTextError) as caught:
        load(text, 16)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "text",
    [
        "- {a: 1}\n- {a: 2}\n",
        "x: &x {a: 1, b: 2}\ny: &y {b: 3}\nz: {<<: *x, <<: *y, b: 4}\n",
        "'1': text\n1: number\n",
        "a: &a1 [1, 2]\nb: [*a1, *a1]\nc: *a1\n",
        '{\n\t"a": [1,\t2]\n}\n',
        "",
    ],
)
def test_other_text_is_not_refused(text):
    load(text, 16)


def test_keys_may_repeat_in_several_documents():
    assert [each.data for each in load_all("a: 1\n---\n# nothing\n---\na: 2\n", 16)] == [{"a": 1}, {"a": 2}]


def test_dates_stay_text():
    assert load("day: 2026-01-02", 16).data == {"day": "2026-01-02"}


def test_line_is_that_of_the_innermost_part_that_exists():
    document = load("# endpoints\nendpoints:\n- name: a\n  port:\n    80\n- name: b\n", 16)
    assert document.line("endpoints") == 2
    assert document.line("endpoints", 0, "port") == 4
    assert document.line("endpoints", 1, "port") == 6
    assert document.line("endpoints", 7) == 2


@pytest.mark.parametrize("text", ["SECRET: [", "a: *SECRET", "a: &SECRET [*SECRET]", "SECRET\tx: 1\nSECRET: {"])
def test_error_of_a_secret_text_has_no_word_of_it(text):
    with pytest.raises(YamlTextError, match=r"line 1|line 2") as caught:
        load(text, 16, secret=True)
    assert "SECRET" not in str(caught.value)
