# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with few running requests."""

from epp.framework import LOAD_INPUTS, RUNNING, Candidates, Category, Floats, Request, comparable_load, lower_is_better
from epp.framework.scoring import LoadScorer


class RunningRequestsSizeScorer(LoadScorer):
    """`(max - r) / (max - min)` over the running requests of each engine; 1 for all if equal.

    Of an endpoint that does not report them, they are estimated from requests in flight.
    """

    plugin_type = "running-requests-size-scorer"
    category = Category.DISTRIBUTION
    zero_means = "runs the most requests"
    reads = (RUNNING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(comparable_load(candidates, RUNNING), request, candidates))
