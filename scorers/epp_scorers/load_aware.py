"""Prefers endpoints with queues far from full."""

import numpy as np

from epp.framework import WAITING, Candidates, Category, Floats, Request
from epp.framework.limits import ThresholdOrDefault
from epp.framework.scoring import LoadParameters, LoadScorer

IDLE_SCORE = 0.5
UNKNOWN_SCORE = 0.25


class LoadAwareParameters(LoadParameters, frozen=True):
    """Length of a full queue."""

    threshold: ThresholdOrDefault = 128.0
    """Waiting requests at which an endpoint gets 0."""


class LoadAwareScorer(LoadScorer[LoadAwareParameters]):
    """`0.5 * (1 - waiting / threshold)`, not below 0: 0.5 for an empty queue.

    An unknown queue gets 0.25, halfway between an empty and a full one.
    """

    plugin_type = "load-aware-scorer"
    category = Category.DISTRIBUTION
    reads = (WAITING,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        waiting = self.in_proportion(candidates.values(WAITING), request, candidates)
        scores = IDLE_SCORE * np.maximum(0.0, 1.0 - waiting / self.parameters.threshold)
        return np.where(np.isnan(waiting), UNKNOWN_SCORE, scores)
