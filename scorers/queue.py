"""Prefers endpoints with short queues."""

from epp.framework import Candidates, Category, Floats, Request, Scorer, lower_is_better
from epp.framework.snapshot import WAITING


class QueueScorer(Scorer):
    """`(max - q) / (max - min)` over the requests waiting in each engine; all equal give 1."""

    plugin_type = "queue-scorer"
    category = Category.DISTRIBUTION
    reads = (WAITING,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        return lower_is_better(candidates.waiting)
