"""Prefers endpoints with free KV cache."""

import numpy as np

from epp.framework import KV_USAGE, Candidates, Category, Floats, Request, Scorer


class KvCacheUtilizationScorer(Scorer):
    """`1 - kv_usage`; 0.5 for an endpoint that has not reported."""

    plugin_type = "kv-cache-utilization-scorer"
    category = Category.DISTRIBUTION
    reads = (KV_USAGE,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        usage = candidates.values(KV_USAGE)
        return np.where(np.isnan(usage), 0.5, 1.0 - usage)
