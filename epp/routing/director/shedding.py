# SPDX-License-Identifier: Apache-2.0
"""Admission without queues: sheddable requests are refused while the pool is saturated, all others admitted."""

from typing import Any

import numpy as np

from epp.framework import Parameters
from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.errors import SheddableDroppedError
from epp.framework.flow_control import SaturationDetector, saturation_of
from epp.framework.load import expected_load
from epp.framework.request import Request
from epp.framework.snapshot import KV_USAGE, WAITING

_FULL_QUEUE = 5.0
"""Requests in an engine's queue at which it is full: the default of `utilization-detector`."""
_FULL_KV_USAGE = 0.8
"""Share of an engine's KV cache at which it is full, likewise."""


class UsualDetector(SaturationDetector[Parameters]):
    """The detector of a configuration that names none: `utilization-detector` without a limit of age.

    An endpoint whose numbers are unknown or old is not full for that reason, as llm-d-router has it: sheddable requests
    to a pool without metrics pages, or with slow ones, are served.
    """

    def __init__(self) -> None:
        super().__init__(name="usual-detector")

    def fullness(self, candidates: Candidates) -> Floats:
        """Return the larger of `waiting / 5` and `kv_usage / 0.8`; what is unknown is estimated from own requests."""
        with np.errstate(over="ignore"):  # pages can claim any number
            fullest: Floats = np.maximum(
                expected_load(candidates, WAITING) / _FULL_QUEUE, expected_load(candidates, KV_USAGE) / _FULL_KV_USAGE
            )
        return fullest

    def saturation(self, candidates: Candidates) -> float:
        """Return the mean."""
        with np.errstate(over="ignore"):
            return super().saturation(candidates)


def shed(request: Request, candidates: Candidates, detector: SaturationDetector[Any]) -> None:
    """Raise SheddableDroppedError for a request of negative priority while the pool is saturated."""
    if request.priority < 0 and saturation_of(detector, candidates).effective >= 1.0:
        raise SheddableDroppedError
