# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with short queues."""

from epp.framework import LOAD_INPUTS, WAITING, Candidates, Category, Floats, Request, comparable_load, lower_is_better
from epp.framework.scoring import LoadScorer


class QueueScorer(LoadScorer):
    """`(max - q) / (max - min)` over the waiting requests of each engine; 1 for all if equal.

    Of an endpoint that does not report them, they are estimated from requests in flight.
    """

    plugin_type = "queue-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has the longest queue"
    reads = (WAITING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(comparable_load(candidates, WAITING), request, candidates))
