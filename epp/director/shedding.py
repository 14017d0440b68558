# SPDX-License-Identifier: Apache-2.0
"""Admission without queues: sheddable requests are refused while the pool is saturated, all others admitted."""

import numpy as np

from epp.framework.candidates import Candidates
from epp.framework.errors import SheddableDroppedError
from epp.framework.load import expected_load
from epp.framework.request import Request
from epp.framework.snapshot import KV_USAGE, WAITING

FULL_QUEUE = 5.0
"""Requests in an engine's queue at which it is full: the default of `utilization-detector`."""
FULL_KV_USAGE = 0.8
"""Share of an engine's KV cache at which it is full, likewise."""


def shed(request: Request, candidates: Candidates) -> None:
    """Raise SheddableDroppedError for a request of negative priority while the pool is saturated."""
    if request.priority < 0 and saturation(candidates) >= 1.0:
        raise SheddableDroppedError


def saturation(candidates: Candidates) -> float:
    """Return the mean over the candidates of `max(waiting / 5, kv_usage / 0.8)`; 1 or more is saturated.

    llm-d-router counts an endpoint as full whose metrics are unknown or older than 200 ms. Here its numbers are
    estimated from own requests in flight, as everywhere: a pool without metrics pages, or one whose pages are slow, is
    not saturated for that reason, and sheddable requests to it are served.
    """
    fullness = np.maximum(
        expected_load(candidates, WAITING) / FULL_QUEUE, expected_load(candidates, KV_USAGE) / FULL_KV_USAGE
    )
    with np.errstate(over="ignore"):  # pages can claim any number
        return float(fullness.mean())
