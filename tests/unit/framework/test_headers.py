# SPDX-License-Identifier: Apache-2.0
"""Names of headers, in all spellings."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epp
import scorers
from epp.framework import Headers, headers
from epp.framework.headers import Spellings

NAME = re.compile(r"x-[a-z0-9-]+")
OTHERS = {"x-sim-server", "x-anthropic-billing-header"}
"""A mark of simulated servers, and a line that a client writes into prompts."""


def test_names_stand_in_one_module():
    modules = [path for package in (epp, scorers) for path in Path(package.__path__[0]).rglob("*.py")]
    elsewhere = {
        (path.name, node.value)
        for path in modules
        if path != Path(headers.__file__)
        if re.search("[\"']x-", text := path.read_text())  # to parse all modules takes two seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value)
    }
    assert {name for _, name in elsewhere} == OTHERS, elsewhere


@pytest.mark.parametrize(
    "name",
    [
        *(*sorted(headers.OBEYED_BY_ENDPOINTS), *headers.FAIRNESS_ID, *headers.MODEL_REWRITE, *headers.SLO_TTFT_MS),
        *(*headers.SLO_TPOT_MS, headers.DESTINATION, headers.ACCELERATOR_PREFIX + "class"),
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


CONTROL_NAMES = [
    *(*sorted(headers.CONTROL.names), *(start + "of-any-kind" for start in sorted(headers.CONTROL.beginnings))),
    *(*headers.FAIRNESS_ID, *headers.OBJECTIVE, *headers.MODEL_REWRITE),
    *(headers.DESTINATION, headers.ACCELERATOR_PREFIX + "class"),
]
SEPARATORS = st.sampled_from("-_.!#$%&'*+^`|~")
TOKENS = st.text("abdeglpwxy0-_.", min_size=1, max_size=24)


@st.composite
def spellings(draw, names=CONTROL_NAMES):
    words = draw(st.sampled_from(names)).split("-")
    return "".join(word + draw(SEPARATORS) for word in words[:-1]) + words[-1]


def folded(name: str) -> str:
    """The variable in which CGI hands a header on."""
    return re.sub("[^a-z0-9]", "_", name)


FOLDED = {folded(name) for name in headers.CONTROL.names}
FOLDED_BEGINNINGS = tuple(map(folded, headers.CONTROL.beginnings))


@given(st.lists(spellings() | TOKENS | st.sampled_from(["accept", "x-request-id", "cookie"]), unique=True, max_size=12))
def test_those_among_any_names_are_those_that_fold_to_one(names):
    expected = [name for name in names if folded(name) in FOLDED or folded(name).startswith(FOLDED_BEGINNINGS)]
    assert headers.CONTROL.among(names) == expected


@given(spellings())
def test_every_spelling_of_a_control_name_is_one(name):
    assert headers.CONTROL.among([name]) == [name]


@pytest.mark.parametrize(
    "name",
    [
        *("x_gateway_destination_endpoint", "x-epp_accelerator-class", "x_data-parallel_rank", "x_prefiller_host_port"),
        *("x_llm_d_inference_fairness_id", "x-llm_d-slo-ttft-ms", "x_slo_tpot_ms", "x.gateway.model.name.rewrite"),
    ],
)
def test_spellings_as_they_are_seen(name):
    assert headers.CONTROL.has(name)


@pytest.mark.parametrize(
    "name",
    [
        *("x-eppo", "my-x-epp-a", "xx-epp-a", "xepp-a", "x-llmd-a", "x-prefiller-hostport"),
        *("x-data-parallel-ranks", "x-slo"),
    ],
)
def test_names_that_only_look_like_one_are_none(name):
    assert headers.CONTROL.among([name, "x-epp", "x-gateway"]) == []


@given(st.lists(spellings() | TOKENS, max_size=4), st.integers(1, 2))
def test_names_among_very_long_ones_are_found_too(names, count):
    long = ["x-" * 3000, "x-epp-" + "a" * 5000][:count]
    assert headers.CONTROL.among([*names, *long]) == [*headers.CONTROL.among(names), *long[1:]]


def test_none_is_nothing():
    assert Spellings().among(["", "a", "x-epp-a"]) == []


def test_more_names_count_beside_them():
    more = headers.CONTROL.beside({"api-key"})
    assert more.among(["api_key", "api-key", "x-epp_a", "apikey"]) == ["api_key", "api-key", "x-epp_a"]
    assert headers.CONTROL.among(["api_key"]) == []
