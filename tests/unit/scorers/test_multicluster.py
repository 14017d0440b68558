# SPDX-License-Identifier: Apache-2.0
"""Scores of clusters by the means that their routers report."""

from math import nan

import pytest

from epp.framework import Request
from epp.framework.snapshot import CLUSTER_KV_USAGE, CLUSTER_QUEUE
from epp.framework.testing import candidates
from epp_scorers.load import MultiClusterKvCacheUtilizationScorer, MultiClusterQueueScorer


def scores(scorer, column, values):
    return scorer.score(Request("r"), candidates(reported={column.name: values})).tolist()


def test_cluster_scores_by_its_free_kv_cache_and_a_silent_one_gets_0():
    scorer = MultiClusterKvCacheUtilizationScorer()
    assert scores(scorer, CLUSTER_KV_USAGE, [0.25, 1.0, nan, 0.0]) == [0.75, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        ([2, 10, 4], [1.0, 0.0, 0.75]),  # (10 - 4) / (10 - 2)
        ([3, 3], [1.0, 1.0]),
        ([3, nan], [1.0, 0.0]),
        ([2, nan, 6, 4], [1.0, 0.0, 0.0, 0.5]),
        ([nan, nan], [0.0, 0.0]),
    ],
)
def test_cluster_scores_by_its_queue_between_the_shortest_and_the_longest(queues, expected):
    assert scores(MultiClusterQueueScorer(), CLUSTER_QUEUE, queues) == expected
