# SPDX-License-Identifier: Apache-2.0
"""YAML from outside: what could end the process, or hide a part of itself, is refused with its line."""

import pytest
import yaml

from epp.runtime.plain_yaml import PlainLoader, refuse_unsafe

DOUBLED = "a: &a0 [x]\n" + "".join(f"b{i}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(60))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 17, "line 1: nested more than 16 deep"),
        ("a:\n" * 3 + "  b: 1\n", "line 2: key 'a' is repeated: remove one of them"),
        ("- {x: 1}\n- {x: 1, y: {x: 2}, x: 3}\n", "line 2: key 'x' is repeated"),
        ("a: {b: {c: 1}, d: [1, {e: 2}]}\nf: 1\na: 2\n", "line 3: key 'a' is repeated"),
        (DOUBLED, r"line \d+: its aliases expand to more than 1000000 values: write fewer"),
        ("a: 1\nb: &b {c: [*b]}\n", "line 2: alias 'b' is inside its own anchor"),
    ],
)
def test_unsafe_text_is_refused_with_its_line(text, problem):
    with pytest.raises(ValueError, match=problem):
        refuse_unsafe(text, 16)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\n---\na: 2\n",
        "- {a: 1}\n- {a: 2}\n",
        "x: &x {a: 1, b: 2}\ny: &y {b: 3}\nz: {<<: *x, <<: *y, b: 4}\n",
        "? [a, b]\n: 1\n? {c: 1}\n: 2\nc: 3\n",
        "'1': text\n1: number\n",
        "a: &a1 [1, 2]\nb: [*a1, *a1]\nc: *a1\n",
        "",
    ],
)
def test_other_text_is_not(text):
    refuse_unsafe(text, 16)


def test_keys_may_repeat_where_the_reader_says_it_better():
    refuse_unsafe("a: 1\na: 2\n", 16, keys_may_repeat=True)


def test_dates_stay_text():
    assert yaml.load("day: 2026-01-02", Loader=PlainLoader) == {"day": "2026-01-02"}  # noqa: S506  a safe loader
