# SPDX-License-Identifier: Apache-2.0
"""Where an adapter is, and where it could go."""

import pytest

from epp.framework import LoraState, Request, RequestBody
from epp.framework.testing import candidates
from epp_scorers.affinity import LoraAffinityScorer

REQUEST = Request("r", RequestBody(model="m"))


def state(running=(), waiting=(), max_adapters=2):
    return LoraState(frozenset(running), frozenset(waiting), max_adapters)


@pytest.mark.parametrize(
    ("adapters", "expected"),
    [
        (state(running=["m"]), 1.0),
        (state(running=["m"], waiting=["m"]), 1.0),  # engines list an adapter in use in both
        (state(running=["m", "a"]), 1.0),
        (state(), 0.8),
        (state(running=["a"]), 0.8),
        (state(running=["a"], waiting=["a"]), 0.8),  # one adapter takes one slot, listed twice or not
        (state(running=["a"], waiting=["m"]), 0.8),  # the second slot is for the one that waits
        (state(running=["a", "b"], waiting=["m"]), 0.6),
        (state(running=["a"], waiting=["b", "m"]), 0.6),  # the second slot may go to b
        (state(running=["a", "b"]), 0.0),
        (state(running=["a"], waiting=["b"]), 0.0),
        (state(max_adapters=0), 0.0),  # serves no adapters, or never said
    ],
)
def test_best_answer_that_applies_is_the_score(adapters, expected):
    assert LoraAffinityScorer().score(REQUEST, candidates(lora=[adapters])).tolist() == [expected]


def test_each_model_is_scored_for_itself():
    pool = candidates(lora=[state(running=["m", "a"]), state(running=["a", "b"])])
    scorer = LoraAffinityScorer()
    assert scorer.score(REQUEST, pool).tolist() == [1.0, 0.0]
    assert scorer.score(Request("r", RequestBody(model="b")), pool).tolist() == [0.0, 1.0]


def test_request_without_a_model_prefers_nobody():
    assert LoraAffinityScorer().score(Request("r"), candidates(lora=[state(), state(["a"])])).tolist() == [0.0, 0.0]
