# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with free KV cache."""

from epp.framework import KV_USAGE, LOAD_INPUTS, Candidates, Category, Floats, Request, Scorer, comparable_load


class KvCacheUtilizationScorer(Scorer):
    """`1 - kv_usage`, of an endpoint that does not report it by an estimate from requests in flight."""

    plugin_type = "kv-cache-utilization-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has a full KV cache"
    reads = (KV_USAGE,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        return 1.0 - comparable_load(candidates, KV_USAGE)
