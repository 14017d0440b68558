# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints with little load: requests, queued requests, KV cache or prompt tokens."""

import numpy as np

from epp.framework import (
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    RUNNING,
    WAITING,
    Candidates,
    Category,
    Floats,
    Request,
    Scorer,
    comparable_load,
    lower_is_better,
)
from epp.framework.limits import CountOrDefault, NaturalOrDefault, ShareOrDefault, ThresholdOrDefault
from epp.framework.scoring import LoadParameters, LoadScorer


class ActiveRequestParameters(LoadParameters, frozen=True):
    """Threshold for idle endpoints, and upper bound for the scores of busy ones."""

    idle_threshold: NaturalOrDefault = 0
    """Requests in flight up to which an endpoint counts as idle, regardless of its capacity."""
    max_busy_score: ShareOrDefault = 1.0
    """Upper bound for the scores of busy endpoints; below 1, every idle endpoint scores higher than every busy one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility, without effect: the picker keeps one count of requests in flight."""
    request_timeout: str = ""
    """Accepted for compatibility, without effect: a request is in flight until its response ends."""


class ActiveRequestScorer(LoadScorer[ActiveRequestParameters]):
    """1 for `count <= idleThreshold`, else `(max - count) / max * maxBusyScore`.

    `count` is the number of requests in flight from this picker, `max` the largest among the candidates.
    """

    plugin_type = "active-request-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has the most requests in flight"
    reads = (IN_FLIGHT,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        counts = candidates.values(IN_FLIGHT)
        load = self.in_proportion(counts, request, candidates)
        busiest = load.max(initial=0.0) or 1.0
        busy = (busiest - load) / busiest * self.parameters.max_busy_score
        return np.where(counts <= self.parameters.idle_threshold, 1.0, busy)


class RunningRequestsSizeScorer(LoadScorer):
    """`(max - r) / (max - min)` over the running requests of each engine; 1 for all if equal.

    The number is estimated from requests in flight if an endpoint does not report it.
    """

    plugin_type = "running-requests-size-scorer"
    category = Category.DISTRIBUTION
    zero_means = "runs the most requests"
    reads = (RUNNING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(comparable_load(candidates, RUNNING), request, candidates))


class QueueScorer(LoadScorer):
    """`(max - q) / (max - min)` over the waiting requests of each engine; 1 for all if equal.

    The number is estimated from requests in flight if an endpoint does not report it.
    """

    plugin_type = "queue-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has the longest queue"
    reads = (WAITING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(comparable_load(candidates, WAITING), request, candidates))


class KvCacheUtilizationScorer(Scorer):
    """`1 - kv_usage`, estimated from requests in flight if an endpoint does not report it."""

    plugin_type = "kv-cache-utilization-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has a full KV cache"
    reads = (KV_USAGE,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return 1.0 - comparable_load(candidates, KV_USAGE)


class LoadAwareParameters(LoadParameters, frozen=True):
    """Length of a full queue."""

    threshold: ThresholdOrDefault = 128.0
    """Waiting requests at which an endpoint gets 0."""


class LoadAwareScorer(LoadScorer[LoadAwareParameters]):
    """`0.5 * (1 - waiting / threshold)`, not below 0: 0.5 for an empty queue.

    The queue is estimated from requests in flight if an endpoint does not report it.
    """

    plugin_type = "load-aware-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has a full queue"
    reads = (WAITING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        waiting = self.in_proportion(comparable_load(candidates, WAITING), request, candidates)
        return 0.5 * np.maximum(0.0, 1.0 - waiting / self.parameters.threshold)


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
    zero_means = "has queueThresholdTokens or more prompt tokens in flight"
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
