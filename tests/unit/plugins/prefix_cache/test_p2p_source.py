# SPDX-License-Identifier: Apache-2.0
"""Endpoint from which another one copies KV blocks."""

from math import nan

import numpy as np
import pytest

from epp.framework import PrefixMatch, Request
from epp.framework.request import COPY_SOURCE, PREFIX_MATCH, PULLED_TOKENS
from epp.framework.testing import candidates
from epp.plugins.prefix_cache.affinity import P2PSourceParameters, P2PSourceProducer, fnv1a_32
from tests.support.results import legs_to

BLOCK = 16


def source_for(target, offloaded, held=None, *, waiting=None, prefill=None, request_id="a", pulled=None, **parameters):
    """Return the header for prompts of which endpoints hold these numbers of blocks in host memory, and in all."""
    pool = candidates(waiting=waiting or [0] * len(offloaded))
    blocks = np.array(offloaded if held is None else held, dtype=np.int32)
    tiers = None if held is None else np.array(offloaded, dtype=np.int64) * BLOCK
    producer = P2PSourceProducer(P2PSourceParameters(**parameters))
    request = Request(request_id)
    if pulled is not None:
        request.put(PULLED_TOKENS, np.array(pulled))
    request.put(PREFIX_MATCH, PrefixMatch(blocks, 100, BLOCK, None, tiers))
    producer.produce(request, pool)
    legs = {"decode": target} | ({} if prefill is None else {"prefill": prefill})
    added = producer.pre_request(request, legs_to(pool, **legs))
    named = None if added is None else added["x-kv-cache-source-host-port"]
    assert request.get(COPY_SOURCE) == named
    return named


@pytest.mark.parametrize(("text", "expected"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)])
def test_hash_is_fnv1a(text, expected):
    assert fnv1a_32(text) == expected


SECOND = "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("target", "offloaded", "more", "expected"),
    [
        (0, [0, 5, 0], {}, SECOND),
        (0, [0, 5, 0], {"held": [0, 5, 9]}, SECOND),  # the blocks on the GPU of e2 cannot be copied
        (0, [0, 0, 0], {"held": [0, 5, 9]}, None),
        # the target is the source, or holds as much
        (1, [0, 5, 0], {}, None),
        (2, [0, 5, 0], {"held": [0, 5, 5]}, None),
        (2, [0, 5, 0], {"held": [0, 5, 4]}, SECOND),  # 80 tokens, 16 more than 64
        (2, [0, 5, 0], {"held": [0, 5, 4], "min_cached_token_delta": 16}, SECOND),
        (2, [0, 5, 0], {"held": [0, 5, 4], "min_cached_token_delta": 17}, None),
        # a copy takes longer than the computation
        (0, [0, 5, 0], {"pulled": [80, 0, 0]}, SECOND),
        (2, [0, 5, 0], {"pulled": [80, 0, 0]}, None),
        # the target of the prefill profile computes the prompt if there is one
        (0, [0, 5, 0], {"prefill": 1}, None),
        (1, [0, 5, 0], {"prefill": 2}, SECOND),
        (0, [0, 5, 0], {"prefill": 1, "prefill_profile_name": "other"}, SECOND),
    ],
)
def test_source_holds_more_in_the_memory_of_its_host_than_the_endpoint_that_computes(target, offloaded, more, expected):
    assert source_for(target, offloaded, **more) == expected


@pytest.mark.parametrize(
    ("waiting", "request_id", "expected"),
    [
        # The hash of "foobar" is 0.748 of 2^32, that of "a" 0.891, that of "" 0.505.
        ([0, 0, 0, 0], "a", "10.0.0.3:8000"),
        ([0, 0, 0, 0], "", "10.0.0.3:8000"),  # weights 1, 1: e1 up to 0.5
        ([0, 0, 1, 0], "", "10.0.0.2:8000"),  # weights 1, 1/2: e1 up to 0.667
        ([0, 0, 4, 0], "foobar", "10.0.0.2:8000"),  # weights 1, 1/5: e1 up to 0.833
        ([0, 0, 4, 0], "a", "10.0.0.3:8000"),
        ([0, nan, 4, 0], "foobar", "10.0.0.2:8000"),  # an unknown queue counts as empty
    ],
)
def test_source_is_drawn_among_those_within_one_block_of_the_best_by_their_queues(waiting, request_id, expected):
    assert source_for(0, [0, 5, 4, 3], waiting=waiting, request_id=request_id) == expected
