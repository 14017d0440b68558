# SPDX-License-Identifier: Apache-2.0
"""Refuses sheddable requests with a probability that rises with the load of the pool."""

from collections.abc import Sequence
from math import exp, log

import numpy as np

from epp.framework import (
    KV_USAGE,
    WAITING,
    Admitter,
    Candidates,
    Parameters,
    Positive,
    Request,
)
from epp.framework.errors import SheddableDroppedError


class ProbabilisticAdmitterParameters(Parameters, frozen=True):
    """Thresholds of a full engine, and the shape of the probability."""

    queue_depth_threshold: Positive = 5.0
    """Requests in an engine's queue at which it is full."""
    kv_cache_util_threshold: Positive = 0.8
    """Share of an engine's KV cache in use, 0..1, at which it is full."""
    power: Positive = 5.0
    """Steepness: the higher, the later and the more abruptly the probability rises."""
    k: Positive = 300.0
    """Factor: the probability is 1 from a saturation of `(1/k)^(1/power)`, 0.32 by default."""


class ProbabilisticAdmitter(Admitter[ProbabilisticAdmitterParameters]):
    """Refuses requests of negative priority with probability `min(saturation^power * k, 1)`.

    The saturation is the mean over the candidates of `max(waiting / queueDepthThreshold, kv / kvCacheUtilThreshold)`.
    If one of the numbers is unknown, the other counts; candidates without either are left out. Without any metrics all
    requests are admitted.
    """

    plugin_type = "probabilistic-admitter"
    reads = (WAITING, KV_USAGE)

    @property
    def warnings(self) -> Sequence[str]:
        threshold = self.parameters.kv_cache_util_threshold
        if threshold <= 1:
            return ()
        return (f"kvCacheUtilThreshold is {threshold:g}, and a KV cache is never fuller than 1: write a share",)

    def admit(self, request: Request, candidates: Candidates) -> None:
        if request.priority < 0 and request.uniform(self.plugin_type) < self.probability(candidates):
            raise SheddableDroppedError

    def probability(self, candidates: Candidates) -> float:
        """Return the probability with which a sheddable request is refused."""
        fullness = np.fmax(
            candidates.values(WAITING) / self.parameters.queue_depth_threshold,
            candidates.values(KV_USAGE) / self.parameters.kv_cache_util_threshold,
        )
        known = fullness[~np.isnan(fullness)]
        saturation = float(known.mean()) if len(known) else 0.0
        if saturation <= 0:
            return 0.0
        # As logarithms: a power of a long queue may exceed the range of floats.
        return exp(min(0.0, self.parameters.power * log(saturation) + log(self.parameters.k)))
