# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints with the fewest unfinished requests from this picker."""

import numpy as np

from epp.framework import IN_FLIGHT, Candidates, Category, Floats, Request
from epp.framework.limits import NaturalOrDefault, ShareOrDefault
from epp.framework.scoring import LoadParameters, LoadScorer


class ActiveRequestParameters(LoadParameters, frozen=True):
    """Threshold for idle endpoints, and upper bound for the scores of busy ones."""

    idle_threshold: NaturalOrDefault = 0
    """Requests in flight up to which an endpoint counts as idle, whatever its capacity."""
    max_busy_score: ShareOrDefault = 1.0
    """Upper bound for the scores of busy endpoints; below 1, every idle endpoint scores higher than every busy one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility, without effect: the picker keeps one count of requests in flight."""
    request_timeout: str = ""
    """Accepted for compatibility, without effect: a request is in flight until its response ends."""


class ActiveRequestScorer(LoadScorer[ActiveRequestParameters]):
    """1 for `count <= idleThreshold`, else `(max - count) / max * maxBusyScore`.

    `count` is the number of requests in flight from this picker, `max` the largest among the candidates.
    """

    plugin_type = "active-request-scorer"
    category = Category.DISTRIBUTION
    zero_means = "has the most requests in flight"
    reads = (IN_FLIGHT,)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        counts = candidates.values(IN_FLIGHT)
        load = self.in_proportion(counts, request, candidates)
        busiest = load.max(initial=0.0) or 1.0
        busy = (busiest - load) / busiest * self.parameters.max_busy_score
        return np.where(counts <= self.parameters.idle_threshold, 1.0, busy)
