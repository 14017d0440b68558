# SPDX-License-Identifier: Apache-2.0
"""Admission by load, and reported values."""

import sys
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request, Response, Usage
from epp.framework.errors import ConfigurationError
from epp.framework.refusals import SheddableDroppedError
from epp.framework.testing import candidates
from epp.plugins.request_control import AttributeReporter, ProbabilisticAdmitter, ProbabilisticAdmitterParameters
from tests.support.plugins import built

pytest.importorskip("cel_expr_python")

ENDPOINT = candidates(waiting=[0])[0]
USAGE = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=30)


def build(expression, condition="", **key):
    attribute = {"key": {"name": "cost"} | key, "expression": expression, "condition": condition}
    return built(AttributeReporter, {"attributes": [attribute]})


def reported(plugin, usage=USAGE):
    return plugin.report(Request("r"), Response(ENDPOINT, usage=usage))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("usage.prompt_tokens", 100),
        ("usage.completion_tokens", 20),
        ("usage.total_tokens", 120),
        ("usage.prompt_tokens_details.cached_tokens", 30),
        ("usage['prompt_tokens']", 100),
        ("usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens", 70),
        ("0.5 * usage.prompt_tokens + 2.0 * usage.completion_tokens", 90),  # 50 + 40
        ("usage.prompt_tokens + 2 * usage.completion_tokens", 140),  # only works with integers
        ("usage.prompt_tokens / 3", 33),  # likewise
        ("usage.prompt_tokens / usage.completion_tokens", 5.0),
        ("  usage.prompt_tokens +\n usage.completion_tokens\n", 120),
        ("(has(usage.prompt_tokens) ? usage.prompt_tokens : 0) + usage.completion_tokens", 120),
        ("has(usage.reasoning_tokens) ? usage.reasoning_tokens : 0.0", 0),
        ("usage.total_tokens > 50 ? 'large' : 'small'", "large"),
        ("usage.prompt_tokens_details.cached_tokens > 0", True),
    ],
)
def test_value_of_the_expression_is_reported(expression, value):
    found = reported(build(expression))
    assert found == {"envoy.lb": {"cost": value}}
    assert type(found["envoy.lb"]["cost"]) in {type(value), float}


def test_value_goes_into_the_namespace_named_if_the_condition_holds_and_usage_is_known():
    assert reported(build("usage.prompt_tokens", namespace="mine")) == {"mine": {"cost": 100}}
    assert reported(build("1"), usage=None) == {}
    plugin = build("usage.completion_tokens", "has(usage.completion_tokens) && usage.completion_tokens > 10")
    assert reported(plugin) == {"envoy.lb": {"cost": 20}}
    assert reported(plugin, Usage(100, 10, 0)) == {}


def test_expression_that_fails_for_one_response_says_so():
    plugin = build("100 / int(usage.completion_tokens)")
    assert reported(plugin) == {"envoy.lb": {"cost": 5}}
    with pytest.raises(ValueError, match=r"expression '100 / .*' fails: .*zero"):
        reported(plugin, Usage(100, 0, 0))


def test_number_that_is_none_is_not_reported():
    plugin = build("usage.prompt_tokens / usage.completion_tokens")
    with pytest.raises(ValueError, match="returns inf; it must return one of: str, int, float, bool"):
        reported(plugin, Usage(100, 0, 0))


@given(st.builds(Usage, *[st.integers(0, 2**40)] * 3))
def test_sum_is_right_for_any_usage(usage):
    found = reported(PLUGIN, usage)
    assert found == {"envoy.lb": {"cost": usage.prompt_tokens + usage.completion_tokens}}


PLUGIN = build("usage.total_tokens")


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("", "expression '' is not a CEL expression"),
        ("usage.prompt_tokens +", r"expression 'usage.prompt_tokens \+' is not a CEL expression.*Syntax error"),
        ("request.path", "expression 'request.path' is not a CEL expression over `usage`.*undeclared"),
        ("cost(usage)", "expression 'cost.usage.' is not a CEL expression.*undeclared"),
        ("usage.input_tokens", "expression 'usage.input_tokens' fails: .*input_tokens"),
        ("usage.prompt_tokens + 'a'", "expression .usage.prompt_tokens . 'a'. fails: .*overload"),
        ("usage", "expression 'usage' returns .*; it must return one of: str, int, float, bool"),
        ("[1]", "it must return one of: str, int, float, bool"),
        ("null", "it must return one of: str, int, float, bool"),
        ("b'a'", "it must return one of: str, int, float, bool"),
    ],
)
def test_expression_that_cannot_work_is_refused_by_its_text(expression, sentence):
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        build(expression)
    assert "\n" not in str(caught.value)  # one line for each problem


@pytest.mark.parametrize("condition", ["usage.prompt_tokens", "'yes'"])
def test_condition_that_gives_no_bool_is_refused(condition):
    with pytest.raises(ConfigurationError, match=r"attributes\[0\].condition .* it must return one of: bool"):
        build("1", condition)


def test_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cel_expr_python.cel", None)
    with pytest.raises(ConfigurationError, match=r"needs the package cel-expr-python: pip install .*cel"):
        build("1")


def admitter(**parameters):
    return built(ProbabilisticAdmitter, parameters)


def probability(pool, **parameters):
    return ProbabilisticAdmitter(ProbabilisticAdmitterParameters(**parameters)).probability(pool)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        # saturation is the mean of max(waiting / 5, kv / 0.8)
        ({"waiting": [0], "kv_usage": [0]}, 0.0),
        ({"waiting": [1], "kv_usage": [0]}, 0.096),  # 0.2 ** 5 * 300
        ({"waiting": [0], "kv_usage": [0.16]}, 0.096),  # 0.16 / 0.8 = 0.2
        ({"waiting": [1, 0], "kv_usage": [0.08, 0.16]}, 0.096),  # (max(0.2, 0.1) + max(0, 0.2)) / 2
        ({"waiting": [2, 0], "kv_usage": [0, 0]}, 0.096),  # (0.4 + 0) / 2
        ({"waiting": [5], "kv_usage": [0]}, 1.0),  # min(1 * 300, 1)
        ({"waiting": [1e300], "kv_usage": [0]}, 1.0),
        ({"waiting": [inf], "kv_usage": [0]}, 1.0),
        # unknown: by the other number, else not at all
        ({"waiting": [1], "kv_usage": [nan]}, 0.096),
        ({"waiting": [nan], "kv_usage": [0.16]}, 0.096),
        ({"waiting": [1, nan], "kv_usage": [0, nan]}, 0.096),
        ({"waiting": [nan, nan], "kv_usage": [nan, nan]}, 0.0),
    ],
)
def test_sheddable_requests_are_turned_away_the_more_the_fuller_the_pool_is(pool, expected):
    assert probability(candidates(**pool)) == pytest.approx(expected)


def test_curve_follows_its_parameters():
    # max(2 / 10, 0.25 / 0.5) = 0.5; 0.5 ** 2 * 3
    curve = {"queue_depth_threshold": 10, "kv_cache_util_threshold": 0.5, "power": 2, "k": 3}
    assert probability(candidates(waiting=[2], kv_usage=[0.25]), **curve) == pytest.approx(0.75)


FULL = candidates(waiting=[10], kv_usage=[1])
BUSY = candidates(waiting=[1], kv_usage=[0])


def admits(pool, seed=0, priority=-1):
    request = Request("always the same", seed=seed, priority=priority)
    try:
        admitter().admit(request, pool)
    except SheddableDroppedError:
        return False
    return True


def test_only_negative_priorities_are_turned_away():
    assert [admits(FULL, priority=priority) for priority in (-1, 0, 1)] == [False, True, True]


def test_idle_pool_admits_all():
    assert all(admits(candidates(waiting=[0, nan]), n) for n in range(50))


def test_share_turned_away_is_the_probability():
    turned_away = sum(not admits(BUSY, n) for n in range(5000))
    # 5,000 draws at 0.096: 480, with a standard deviation of 20.8; the seeds, and so the draws, are always these
    assert 480 - 63 < turned_away < 480 + 63


def test_the_seed_of_a_request_decides_not_its_id():
    fates = [admits(BUSY, n) for n in range(200)]
    assert fates == [admits(BUSY, n) for n in range(200)]
    assert set(fates) == {True, False}


@given(
    st.lists(st.tuples(st.floats(0, 1e9) | st.just(nan), st.floats(0, 1) | st.just(nan)), min_size=1, max_size=5),
    st.floats(1e-3, 1e6),
    st.floats(1e-3, 1e6),
)
def test_probability_is_one_for_any_parameters(endpoints, power, k):
    waiting, kv_usage = zip(*endpoints, strict=True)
    assert 0.0 <= probability(candidates(waiting=waiting, kv_usage=kv_usage), power=power, k=k) <= 1.0


def test_threshold_that_looks_like_a_percentage_is_warned_of():
    (warning,) = admitter(kvCacheUtilThreshold=80).warnings
    assert warning == "kvCacheUtilThreshold is 80, above a full KV cache: write a share up to 1"
