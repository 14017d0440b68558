# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of plugins."""

import numpy as np
import pytest

from epp.framework import Destination, ProfileResult, SchedulingResult


@pytest.fixture
def sent_to():
    """Make the scheduling result that sends a request to the candidates at these positions."""

    def make(pool, *positions):
        picked = np.array(positions, dtype=np.intp)
        primary = ProfileResult("default", pool, np.zeros(len(pool)), picked)
        return SchedulingResult(Destination(primary), {"default": primary}, {})

    return make
