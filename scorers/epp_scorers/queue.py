"""Prefers endpoints with short queues."""

from epp.framework import WAITING, Candidates, Category, Floats, Request, lower_is_better
from epp.framework.scoring import LoadScorer


class QueueScorer(LoadScorer):
    """`(max - q) / (max - min)` over the waiting requests of each engine; 1 for all if equal."""

    plugin_type = "queue-scorer"
    category = Category.DISTRIBUTION
    reads = (WAITING,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(candidates.values(WAITING), request, candidates))
