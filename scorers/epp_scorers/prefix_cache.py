# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints that hold the beginning of the prompt in their KV cache."""

import numpy as np

from epp.framework import PREFIX_MATCH, Candidates, Category, Count, Floats, Parameters, Request, Scorer, Share


class PrefixCacheParameters(Parameters, frozen=True):
    """Weights of a match's length and of its share of the prompt."""

    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""
    match_length_weight: Share = 0.0
    """Weight `w` of the match's length; its share of the prompt gets the rest."""
    match_length_scale_tokens: Count = 8192
    """Match length in tokens that counts in full."""


class PrefixCacheScorer(Scorer[PrefixCacheParameters]):
    """`w * min(1, matched_tokens / scale)^2 + (1 - w) * matched_blocks / total_blocks`.

    0 for all without a match record, or without a prompt.
    """

    plugin_type = "prefix-cache-scorer"
    category = Category.AFFINITY
    zero_means = "holds nothing of the prompt"

    def setup(self) -> None:
        self._key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._key,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        match = request.get(self._key)
        if match is None or match.total_blocks == 0:
            return np.zeros(len(candidates))
        share = match.shares(candidates)
        weight = self.parameters.match_length_weight
        if weight == 0.0:
            return share
        length = np.minimum(1.0, match.matched_tokens(candidates) / self.parameters.match_length_scale_tokens)
        return weight * length**2 + (1.0 - weight) * share
