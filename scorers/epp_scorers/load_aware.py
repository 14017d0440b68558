# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with queues far from full."""

import numpy as np

from epp.framework import LOAD_INPUTS, WAITING, Candidates, Category, Floats, Request, comparable_load
from epp.framework.limits import ThresholdOrDefault
from epp.framework.scoring import LoadParameters, LoadScorer

IDLE_SCORE = 0.5


class LoadAwareParameters(LoadParameters, frozen=True):
    """Length of a full queue."""

    threshold: ThresholdOrDefault = 128.0
    """Waiting requests at which an endpoint gets 0."""


class LoadAwareScorer(LoadScorer[LoadAwareParameters]):
    """`0.5 * (1 - waiting / threshold)`, not below 0: 0.5 for an empty queue.

    The queue of an endpoint that does not report it is estimated from requests in flight.
    """

    plugin_type = "load-aware-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has a full queue"
    reads = (WAITING,)
    may_read = LOAD_INPUTS

    def score(self, request: Request, candidates: Candidates) -> Floats:
        waiting = self.in_proportion(comparable_load(candidates, WAITING), request, candidates)
        return IDLE_SCORE * np.maximum(0.0, 1.0 - waiting / self.parameters.threshold)
