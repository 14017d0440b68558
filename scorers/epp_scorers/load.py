# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints or clusters with little load, such as requests or prompt tokens, or by any other number."""

from math import inf
from typing import Annotated, ClassVar, Literal

import msgspec
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
    Column,
    Floats,
    Name,
    Parameters,
    Request,
    Scorer,
    comparable_load,
    lower_is_better,
)
from epp.framework.limits import CountOrDefault, NaturalOrDefault, ShareOrDefault, ThresholdOrDefault, Tunable
from epp.framework.plugin import Stability
from epp.framework.scoring import LoadParameters, LoadScorer
from epp.framework.snapshot import CLUSTER_KV_USAGE, CLUSTER_QUEUE, column_named
from epp_scorers.affinity import PrefixCacheScorer


class ActiveRequestParameters(LoadParameters, frozen=True):
    """Threshold for idle endpoints, and upper bound for the scores of busy ones."""

    idle_threshold: Annotated[NaturalOrDefault, Tunable(0, 32)] = 0
    """Requests in flight up to which an endpoint counts as idle, regardless of its capacity."""
    max_busy_score: Annotated[ShareOrDefault, Tunable(0, 1)] = 1.0
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
    zero_means = "has the most requests in flight"
    reads = (IN_FLIGHT,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        counts = candidates.values(IN_FLIGHT)
        load = self.in_proportion(counts, request, candidates)
        busiest = load.max(initial=0.0) or 1.0
        busy = (busiest - load) / busiest * self.parameters.max_busy_score
        return np.where(counts <= self.parameters.idle_threshold, 1.0, busy)


class _LeastScorer(LoadScorer):
    """1 for the lowest value of the column, 0 for the highest."""

    may_read = LOAD_INPUTS
    column: ClassVar[Column]

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(comparable_load(candidates, self.column), request, candidates))


class RunningRequestsSizeScorer(_LeastScorer):
    """`(max - r) / (max - min)` over the running requests of each engine; 1 for all if equal.

    The number is estimated from requests in flight if an endpoint does not report it.
    """

    plugin_type = "running-requests-size-scorer"
    zero_means = "runs the most requests"
    column = RUNNING
    reads = (RUNNING,)


class QueueScorer(_LeastScorer):
    """`(max - q) / (max - min)` over the waiting requests of each engine; 1 for all if equal.

    The number is estimated from requests in flight if an endpoint does not report it.
    """

    plugin_type = "queue-scorer"
    zero_means = "has the longest queue"
    column = WAITING
    reads = (WAITING,)


class KvCacheUtilizationScorer(Scorer):
    """`1 - kv_usage`, estimated from requests in flight if an endpoint does not report it."""

    plugin_type = "kv-cache-utilization-scorer"
    zero_means = "has a full KV cache"
    reads = (KV_USAGE,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return 1.0 - comparable_load(candidates, KV_USAGE)


class LoadAwareParameters(LoadParameters, frozen=True):
    """Length of a full queue."""

    threshold: Annotated[ThresholdOrDefault, Tunable(1, 512, log=True)] = 128.0
    """Waiting requests at which an endpoint gets 0."""


class LoadAwareScorer(LoadScorer[LoadAwareParameters]):
    """`0.5 * (1 - waiting / threshold)`, not below 0: 0.5 for an empty queue.

    The queue is estimated from requests in flight if an endpoint does not report it.
    """

    plugin_type = "load-aware-scorer"
    zero_means = "has a full queue"
    reads = (WAITING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        waiting = self.in_proportion(comparable_load(candidates, WAITING), request, candidates)
        return 0.5 * np.maximum(0.0, 1.0 - waiting / self.parameters.threshold)


class TokenLoadParameters(LoadParameters, frozen=True):
    """Threshold in tokens, and the source of prefix matches."""

    queue_threshold_tokens: Annotated[CountOrDefault, Tunable(4_096, 4_194_304, log=True)] = 4194304
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


class FixedRange(Parameters, frozen=True):
    """A range given in the configuration."""

    min: float
    """Lower end; lower values count as this."""
    max: float
    """Upper end; higher values count as this."""

    def __post_init__(self) -> None:
        if not -inf < self.min < self.max < inf:
            raise ValueError(f"fixedRange is {self.min} to {self.max}; min must be below max, and both finite")


class AdaptiveRange(Parameters, frozen=True):
    """The range from the lowest to the highest value among the candidates."""


class Normalization(Parameters, frozen=True):
    """The range to map to [0, 1]: fixed, or adaptive, which is the default."""

    fixed_range: FixedRange | None = None
    """A fixed range."""
    adaptive_range: AdaptiveRange | None = None
    """The range of the candidates' own values; takes no parameters."""

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("normalization has fixedRange and adaptiveRange; keep one")


class ScorerAlgorithm(Parameters, frozen=True):
    """Conversion of the value to a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Direction: low or high values get high scores."""
    normalization: Normalization = msgspec.field(default_factory=Normalization)
    """Range of values to map to [0, 1]."""


class EndpointAttributeScorerParameters(Parameters, frozen=True):
    """The value to read, and its conversion to a score."""

    attribute_key: Name
    """Name of the value: `waiting`, `running`, `kv_usage`, `GPUUtilization`, or the `attributeKey` of a custom metric.
    The name of a producer at its end is ignored, as in `GPUUtilization/dcgm-extractor`; for a name that contains a
    slash itself, set `producer: ""`."""
    algorithm: ScorerAlgorithm
    """Conversion of the value to a score."""
    producer: str | None = None
    """Accepted for compatibility: values are looked up by name only."""


class EndpointAttributeScorer(Scorer[EndpointAttributeScorerParameters]):
    """`(value - min) / (max - min)`, limited to [0, 1]; 1 minus that for `linear_lower_is_better`.

    `min` and `max` are those of the fixed range, else the lowest and highest value among the candidates; if these are
    equal, every endpoint with a value gets 1. An endpoint whose value is unknown or not finite gets 0; but `waiting`,
    `running` and `kv_usage` of an endpoint that does not report them are estimated from requests in flight.
    """

    plugin_type = "endpoint-attribute-scorer"
    zero_means = "is at the worst end of the range, or its value is not known"
    may_read = LOAD_INPUTS

    def setup(self) -> None:
        attribute = self.parameters.attribute_key
        self._column = column_named(attribute, self.parameters.producer)
        self.reads = (self._column,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        values = comparable_load(candidates, self._column)
        known = np.isfinite(values)
        if not known.any():
            return np.zeros(len(values))
        fixed = self.parameters.algorithm.normalization.fixed_range
        low, high = (fixed.min, fixed.max) if fixed else (values[known].min(), values[known].max())
        if low == high:
            return known.astype(np.float64)
        shares = np.clip((np.where(known, values, low) - low) / (high - low), 0.0, 1.0)
        if self.parameters.algorithm.type == "linear_lower_is_better":
            shares = 1.0 - shares
        return np.where(known, shares, 0.0)


class MultiClusterKvCacheUtilizationScorer(Scorer):
    """`1 - utilization`, of the mean KV cache utilization that the router of a cluster reports.

    0 for a cluster that reports none. The configuration needs a `multicluster-metrics-extractor`.
    """

    plugin_type = "multicluster-kv-cache-utilization-scorer"
    stability = Stability.ALPHA
    zero_means = "has full KV caches, or does not report them"
    reads = (CLUSTER_KV_USAGE,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        usage = candidates.values(CLUSTER_KV_USAGE)
        return np.where(np.isnan(usage), 0.0, 1.0 - usage)


class MultiClusterQueueScorer(Scorer):
    """`(max - q) / (max - min)` over the mean queues that the routers of the clusters report; 1 for all if equal.

    0 for a cluster that reports none. The configuration needs a `multicluster-metrics-extractor`.
    """

    plugin_type = "multicluster-queue-scorer"
    stability = Stability.ALPHA
    zero_means = "has the longest queues, or does not report them"
    reads = (CLUSTER_QUEUE,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        queues = candidates.values(CLUSTER_QUEUE)
        known = ~np.isnan(queues)
        scores = np.zeros(len(queues))
        if known.any():
            scores[known] = lower_is_better(queues[known])
        return scores


class MultiClusterPrefixCacheScorer(PrefixCacheScorer):
    """`w * min(1, matched_tokens / scale)^2 + (1 - w) * matched_blocks / total_blocks`, as `prefix-cache-scorer`.

    A cluster has the prefixes that this picker sent there.
    """

    plugin_type = "multicluster-prefix-cache-scorer"
    stability = Stability.ALPHA
