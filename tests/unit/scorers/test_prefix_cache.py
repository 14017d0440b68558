# SPDX-License-Identifier: Apache-2.0
"""How a prefix match becomes a score."""

import numpy as np
import pytest

from epp.framework import ConfigurationError, PrefixMatch, Request
from epp.framework.request import PREFIX_MATCH
from epp.framework.testing import candidates
from epp_scorers.affinity import PrefixCacheParameters, PrefixCacheScorer

POOL = candidates(waiting=[0, 0, 0])


def request_with(matched, total, key=PREFIX_MATCH):
    request = Request("r")
    request.put(key, PrefixMatch(np.array(matched, dtype=np.int32), total, block_tokens=64))
    return request


def test_share_of_the_prompt_is_the_score_by_default():
    assert PrefixCacheScorer().score(request_with([0, 1, 4], 4), POOL).tolist() == [0.0, 0.25, 1.0]


def test_long_match_outweighs_a_larger_share_of_a_short_prompt():
    scorer = PrefixCacheScorer(PrefixCacheParameters(match_length_weight=0.5, match_length_scale_tokens=256))
    # 2 of 8 blocks = 128 tokens: 0.5 * (128/256)^2 + 0.5 * 2/8 = 0.125 + 0.125
    # 8 of 8 blocks = 512 tokens: 0.5 * min(1, 2)^2 + 0.5 * 1 = 1
    assert scorer.score(request_with([0, 2, 8], 8), POOL).tolist() == [0.0, 0.25, 1.0]


def test_no_match_record_gives_zero_for_all():
    assert PrefixCacheScorer().score(Request("r"), POOL).tolist() == [0.0, 0.0, 0.0]


def test_prompt_without_a_whole_block_gives_zero_for_all():
    assert PrefixCacheScorer().score(request_with([0, 0, 0], 0), POOL).tolist() == [0.0, 0.0, 0.0]


def test_named_producer_is_the_one_that_is_read():
    named = PREFIX_MATCH.produced_by("fine-blocks")
    scorer = PrefixCacheScorer(PrefixCacheParameters(prefix_match_info_producer_name="fine-blocks"))
    assert scorer.reads == (named,)
    assert scorer.score(request_with([4, 0, 0], 4), POOL).tolist() == [0.0, 0.0, 0.0]
    assert scorer.score(request_with([4, 0, 0], 4, named), POOL).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("values", [{"matchLengthWeight": 1.5}, {"matchLengthScaleTokens": 0}])
def test_parameters_outside_their_range_are_refused(build, values):
    with pytest.raises(ConfigurationError, match="it must be"):
        build(PrefixCacheScorer, **values)
