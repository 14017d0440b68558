# SPDX-License-Identifier: Apache-2.0
"""Queues against a threshold."""

from math import nan

import pytest

from epp.framework import ConfigurationError, Request
from epp.framework.testing import candidates
from epp_scorers.load import LoadAwareParameters, LoadAwareScorer


def test_empty_queue_gets_half_and_a_full_one_nothing():
    # half of 1 - 32/128, half of 1 - 64/128
    scores = LoadAwareScorer().score(Request("r"), candidates(waiting=[0, 32, 64, 128, 500]))
    assert scores.tolist() == [0.5, 0.375, 0.25, 0.0, 0.0]


def test_threshold_can_be_set():
    scorer = LoadAwareScorer(LoadAwareParameters(threshold=10))
    assert scorer.score(Request("r"), candidates(waiting=[5, 10])).tolist() == [0.25, 0.0]


def test_unknown_queue_is_that_of_one_with_as_many_requests():
    pool = candidates(waiting=[nan, 0, 64], in_flight=[64, 10, 64])
    assert LoadAwareScorer().score(Request("r"), pool).tolist() == [0.25, 0.5, 0.25]


def test_threshold_that_is_no_number_is_refused(build):
    with pytest.raises(ConfigurationError, match="it must be above 0"):
        build(LoadAwareScorer, threshold=nan)
