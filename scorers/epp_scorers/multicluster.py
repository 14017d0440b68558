# SPDX-License-Identifier: Apache-2.0
"""Prefer clusters with little load, where each endpoint is the router of a cluster."""

import numpy as np

from epp.framework import Candidates, Floats, Request, Scorer, lower_is_better
from epp.framework.plugin import Stability
from epp.framework.snapshot import CLUSTER_KV_USAGE, CLUSTER_QUEUE
from epp_scorers.prefix_cache import PrefixCacheScorer


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
