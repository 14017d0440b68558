"""Prefers endpoints with few requests in their batch."""

from epp.framework import Candidates, Category, Floats, Request, Scorer, lower_is_better
from epp.framework.snapshot import RUNNING


class RunningRequestsSizeScorer(Scorer):
    """`(max - r) / (max - min)` over the requests each engine is running; all equal give 1."""

    plugin_type = "running-requests-size-scorer"
    category = Category.DISTRIBUTION
    reads = (RUNNING,)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        return lower_is_better(candidates.running)
