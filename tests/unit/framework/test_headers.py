# SPDX-License-Identifier: Apache-2.0
"""Names of headers: each in one place, and a client's own kept from endpoints."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epp
import scorers
from epp.framework import Headers, headers

NAME = re.compile(r"x-[a-z0-9-]+")
OTHERS = {"x-sim-server", "x-anthropic-billing-header"}
"""A mark of simulated servers, and a line that a client writes into prompts."""


def test_names_stand_in_one_module():
    modules = [path for package in (epp, scorers) for path in Path(package.__path__[0]).rglob("*.py")]
    elsewhere = {
        (path.name, node.value)
        for path in modules
        if path != Path(headers.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value)
    }
    assert {name for _, name in elsewhere} == OTHERS, elsewhere


@pytest.mark.parametrize(
    "name",
    [
        *sorted(headers.OBEYED_BY_ENDPOINTS),
        *headers.FAIRNESS_ID,
        *headers.MODEL_REWRITE,
        *headers.SLO_TTFT_MS,
        *headers.SLO_TPOT_MS,
        headers.DESTINATION,
        headers.ACCELERATOR_PREFIX + "class",
        "x-llm-d-of-a-later-version",
    ],
)
def test_clients_own_does_not_reach_the_endpoint(name):
    assert headers.CONTROL.has(name)


@pytest.mark.parametrize(
    "name", ["authorization", "x-forwarded-for", headers.REQUEST_ID, headers.SESSION_ID, headers.SESSION_TOKEN]
)
def test_others_do(name):
    assert not headers.CONTROL.has(name)


NAMES = st.sampled_from(
    ["accept", "x-request-id", "x-llm-d-a", "x-epp-b", "x-prefiller-host-port", "my-x-epp-c", "x-epp"]
)
FIELDS = st.lists(st.tuples(NAMES, st.text(max_size=3)), max_size=8)


@given(FIELDS)
def test_first_of_several_values_answers_and_all_are_kept_in_order(fields):
    expected = {name: next(value for other, value in fields if other == name) for name, _ in fields}
    upper = Headers([(name.upper(), value) for name, value in fields])
    same = [Headers.unique(dict(fields))] if len(expected) == len(fields) else []
    for made in (upper, *same):
        assert dict(made) == expected
        assert list(made) == list(dict.fromkeys(name for name, _ in fields))
        assert made.fields() == tuple(fields)
        assert [made.get(name) for name in expected] == list(expected.values())
        assert (made.get("other"), made.get("other", "none"), "other" in made) == (None, "none", False)
