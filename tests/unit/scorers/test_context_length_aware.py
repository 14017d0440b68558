# SPDX-License-Identifier: Apache-2.0
"""Prompt lengths, and the ranges of lengths of endpoints."""

import pytest

from epp.framework import Filter, PromptTokens, Request, RequestBody, Scorer
from epp.framework.request import PROMPT_TOKENS
from epp.framework.testing import candidates
from epp_scorers.affinity import ContextLengthAware
from tests.support.plugins import built

LABEL = "llm-d.ai/context-length-range"
NO_RANGES = ("", "2000", "2000-0", "a-b", "-1-5", "0..2000", "0-" + "9" * 5000)


def build(**parameters):
    return built(ContextLengthAware, parameters)


def pool_of(*ranges, label=LABEL):
    return candidates(labels=[{} if text is None else {label: text} for text in ranges])


def request_of(tokens):
    return Request("r", RequestBody(prompt_tokens=tokens, max_output_tokens=100_000))


@pytest.mark.parametrize(
    ("tokens", "ranges", "expected"),
    [
        # width 2000, headroom 1000: 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 0.5)  = 0.3 + 0.7 * 0.733333 = 0.813333
        # width 10000, headroom 9000: 0.3 + 0.7 * (0.7 / 2 + 0.3 * 0.9)   = 0.3 + 0.7 * 0.62     = 0.734
        # width 90000, headroom 89000: 0.3 + 0.7 * (0.7 / 10 + 0.3 * 89/90) = 0.3 + 0.7 * 0.366667 = 0.556667
        (1000, ["0-2000", "0-10000", "0-90000"], [0.813333, 0.734, 0.556667]),
        # outside: 9000 - 8000 = 1000: 0.3 / 2; 9000 - 2000 = 7000: 0.3 / 8; 10000 - 9000 = 1000: 0.3 / 2
        (9000, ["0-8000", "0-2000", "10000-20000"], [0.15, 0.0375, 0.15]),
        # both ends belong to it; headroom 1 of 1: 0.3 + 0.7 * (0.7 / 1.1 + 0.3); headroom 0: 0.3 + 0.7 * 0.7 / 1.1
        (1000, ["1000-2000", "0-1000"], [0.3 + 0.49 / 1.1 + 0.21, 0.3 + 0.49 / 1.1]),
        # a range of one length fits best
        (512, ["512-512"], [1.0]),
        (1512, ["512-512"], [0.15]),  # 0.3 / 2
        (9000, [" 0 - 8000 "], [0.15]),
    ],
)
def test_range_that_fits_scores_by_width_and_headroom_and_others_by_distance(tokens, ranges, expected):
    assert build().score(request_of(tokens), pool_of(*ranges)).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("label", "score", "stays"),
    [(None, 0.5, True), *((label, 0.0, False) for label in NO_RANGES)],
)
def test_endpoint_without_the_label_is_neutral_and_a_label_that_is_no_range_fits_no_prompt(label, score, stays):
    plugin, pool = build(enableFiltering=True), pool_of(label)
    assert plugin.score(request_of(9000), pool).tolist() == [score]
    assert plugin.filter(request_of(9000), pool).tolist() == [stays]


def test_counted_tokens_take_the_place_of_the_estimate():
    request = request_of(1)
    request.put(PROMPT_TOKENS, PromptTokens(9000))
    assert build().score(request, pool_of("0-8000")).tolist() == [pytest.approx(0.15)]


def test_filtering_keeps_endpoints_in_range_and_those_without_one():
    pool = pool_of("0-2000", "2001-8000", "4000-4000", None)
    plugin = build(enableFiltering=True)
    assert plugin.filter(request_of(2000), pool).tolist() == [True, False, False, True]
    assert plugin.filter(request_of(4000), pool).tolist() == [False, True, True, True]
    assert build().filter(request_of(9000), pool).tolist() == [True] * 4


def test_other_label_may_hold_the_range():
    pool = pool_of("0-8000", label="range")
    assert build(label="range").score(request_of(9000), pool).tolist() == [pytest.approx(0.15)]
    assert build().score(request_of(9000), pool).tolist() == [0.5]


def test_one_plugin_is_filter_and_scorer_and_may_fall_back():
    plugin = build(enableFiltering=True, fallbackOnEmpty=True)
    assert isinstance(plugin, Filter)
    assert isinstance(plugin, Scorer)
    assert plugin.parameters.fallback_on_empty
