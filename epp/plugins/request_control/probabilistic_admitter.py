"""Turns sheddable requests away, the more of them the fuller the pool is."""

from math import exp, log

import numpy as np

from epp.framework import (
    KV_USAGE,
    PRIORITY,
    WAITING,
    Admitter,
    Candidates,
    Parameters,
    Positive,
    PositiveShare,
    Request,
)
from epp.framework.errors import SheddableDroppedError


class ProbabilisticAdmitterParameters(Parameters, frozen=True):
    """What counts as full, and how steeply requests are turned away on the way there."""

    queue_depth_threshold: Positive = 5.0
    """Requests in an engine's queue at which it counts as full."""
    kv_cache_util_threshold: PositiveShare = 0.8
    """Share of an engine's KV cache in use at which it counts as full, 0..1."""
    power: Positive = 5.0
    """Steepness: the higher, the longer nearly all are let in, and the sooner after that none."""
    k: Positive = 300.0
    """Where the curve ends: all are turned away from a saturation of `(1/k)^(1/power)` on, 0.32 by default."""


class ProbabilisticAdmitter(Admitter[ProbabilisticAdmitterParameters]):
    """Turns away requests of negative priority with probability `min(saturation^power * k, 1)`.

    The saturation is the mean over the candidates of `max(waiting / queueDepthThreshold, kv / kvCacheUtilThreshold)`;
    a candidate with one number unknown counts by the other, one of which nothing is known does not count, and where
    nothing is known of any, all requests are let in.
    """

    plugin_type = "probabilistic-admitter"
    reads = (WAITING, KV_USAGE, PRIORITY)

    def admit(self, request: Request, candidates: Candidates) -> None:
        if request.priority < 0 and request.uniform(self.plugin_type) < self.probability(candidates):
            raise SheddableDroppedError

    def probability(self, candidates: Candidates) -> float:
        """Return with what probability a sheddable request is turned away."""
        fullness = np.fmax(
            candidates.values(WAITING) / self.parameters.queue_depth_threshold,
            candidates.values(KV_USAGE) / self.parameters.kv_cache_util_threshold,
        )
        known = fullness[~np.isnan(fullness)]
        saturation = float(known.mean()) if len(known) else 0.0
        if saturation <= 0:
            return 0.0
        # As logarithms, since a power of a long queue may be more than a float holds.
        return exp(min(0.0, self.parameters.power * log(saturation) + log(self.parameters.k)))
