# SPDX-License-Identifier: Apache-2.0
"""Placement of the requests of one batch: the cases of llm-d-router, and some more."""

from array import array
from collections import Counter

import pytest

from epp.framework.testing import candidates
from epp.plugins.prefix_cache.joint_placement import Balance, Placement


def chain(*blocks):
    """Return a chain of hashes, each of which covers all blocks before it."""
    return array("Q", [hash(blocks[: end + 1]) & (2**64 - 1) for end in range(len(blocks))])


def placed(requests, replicas, *, running=None, **balance):
    """Return the number of the endpoint of each request."""
    pool = candidates(running=running or [0] * replicas)
    places = [None] * len(requests)
    for _ in Placement(pool, Balance(**balance)).place([chain(*blocks) for blocks in requests], places):
        pass
    return places


SAME = [(1, 2, 3)] * 8
PAIRS = [(1, 2, number) for number in range(4) for _ in range(2)]


@pytest.mark.parametrize(
    ("requests", "balance", "expected"),
    [
        # equal prompts go together up to the limit
        (SAME, {"max_per_replica": -1}, [8]),
        (SAME, {"max_per_replica": 4}, [4, 4]),
        (SAME, {"max_per_replica": 3}, [3, 3, 2]),
        (SAME, {"max_per_replica": 2}, [2, 2, 2, 2]),
        (SAME, {"max_per_replica": 1}, [2, 2, 2, 2]),
        # beyond the limit of all endpoints requests go one by one to the least loaded
        ([(1,)] * 11, {"max_per_replica": 2}, [3, 3, 3, 2]),
        # groups with the same beginning spread to their fair shares
        (PAIRS, {"min_colocate_blocks": 2}, [2, 2, 2, 2]),
    ],
)
def test_requests_spread_over_four_endpoints(requests, balance, expected):
    counts = Counter(placed(requests, 4, **balance))
    assert [count for _, count in sorted(counts.items())] == expected


def test_groups_go_to_different_endpoints():
    assert placed([(1, 2)] * 8 + [(3, 4)] * 8, 4) == [0] * 8 + [1] * 8


def test_groups_with_the_same_beginning_share_an_endpoint_below_its_fair_share():
    pairs = [blocks for blocks in ((1, 2, 3), (1, 2, 4), (5, 6, 7), (5, 6, 8)) for _ in range(2)]
    assert placed(pairs, 2, min_colocate_blocks=2) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_prompts_that_are_alone_are_placed_only_where_they_share_enough_with_others():
    requests = [(1, 2, 3), (1, 2, 4), (9, 9, 9)]
    assert placed(requests, 2) == [None, None, None]
    assert placed(requests, 2, min_colocate_blocks=2) == [0, 0, None]  # the fair share is 2
    assert placed(requests, 2, min_colocate_blocks=3) == [None, None, None]


def test_longest_prompts_are_placed_first_and_groups_before_single_ones():
    requests = [(1, 1, 1, 1), (1, 1, 1, 2), (5,), (5,), (6, 6), (6, 6)]
    assert placed(requests, 3, min_colocate_blocks=3) == [2, 2, 1, 1, 0, 0]


def test_fewest_running_requests_decide_among_equal_loads_then_names():
    assert placed([(1,)] * 2 + [(2,)] * 2 + [(3,)] * 2, 3, running=[5, 0, 0]) == [1, 1, 2, 2, 0, 0]


def test_load_in_tokens_counts_blocks_that_an_endpoint_does_not_hold():
    requests = [(1, 1, 1, 1)] * 2 + [(2, 2)] * 2 + [(3,)] * 2 + [(4,)] * 2
    # By blocks: 4 | 2, then 1 and 1 beside the 2; by requests: 2 | 2, then 2 | 2.
    assert placed(requests, 2, by="tokens") == [0, 0, 1, 1, 1, 1, 1, 1]
    assert placed(requests, 2) == [0, 0, 1, 1, 0, 0, 1, 1]


def test_nothing_is_placed_without_endpoints_or_blocks():
    assert placed([(), ()], 2) == [None, None]
    assert placed(SAME, 0) == [None] * 8
