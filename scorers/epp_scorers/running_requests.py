"""Prefers endpoints with few running requests."""

from epp.framework import RUNNING, Candidates, Category, Floats, Request, lower_is_better
from epp.framework.scoring import LoadScorer


class RunningRequestsSizeScorer(LoadScorer):
    """`(max - r) / (max - min)` over the running requests of each engine; 1 for all if equal."""

    plugin_type = "running-requests-size-scorer"
    category = Category.DISTRIBUTION
    reads = (RUNNING,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return lower_is_better(self.in_proportion(candidates.values(RUNNING), request, candidates))
