# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with few prompt tokens to compute before this request's first token."""

import numpy as np

from epp.framework import IN_FLIGHT_TOKENS, PREFIX_MATCH, PROMPT_TOKENS, Candidates, Category, Floats, Request
from epp.framework.limits import CountOrDefault
from epp.framework.scoring import LoadParameters, LoadScorer


class TokenLoadParameters(LoadParameters, frozen=True):
    """Threshold in tokens, and the source of prefix matches."""

    queue_threshold_tokens: CountOrDefault = 4194304
    """Tokens at which an endpoint gets 0."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility, without effect: the picker keeps one count of tokens in flight."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""


class TokenLoadScorer(LoadScorer[TokenLoadParameters]):
    """`1 - min(1, (in_flight_tokens + uncached_tokens) / queueThresholdTokens)`.

    `in_flight_tokens` are the uncached prompt tokens in flight at the endpoint; `uncached_tokens` are those to compute
    for this request: the prompt minus the endpoint's prefix match, or the whole prompt without a match record.
    """

    plugin_type = "token-load-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has as many prompt tokens under way as it may"
    may_read = (PROMPT_TOKENS,)

    def setup(self) -> None:
        super().setup()
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._match_key, IN_FLIGHT_TOKENS, *self.reads)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        match = request.get(self._match_key)
        cached = 0.0 if match is None else match.matched_tokens(candidates)
        uncached = np.maximum(0.0, request.prompt_tokens - cached)
        load = self.in_proportion(candidates.values(IN_FLIGHT_TOKENS) + uncached, request, candidates)
        return 1.0 - np.minimum(1.0, load / self.parameters.queue_threshold_tokens)
