# SPDX-License-Identifier: Apache-2.0
"""Results of scheduling that a test chooses."""

import numpy as np

from epp.framework import Destination, ProfileResult, SchedulingResult


def picked(pool, profile, at):
    """Return the result of a profile that picked this position, or these: the target, then its fallbacks."""
    return ProfileResult(profile, pool, np.zeros(len(pool)), np.array(at, dtype=np.intp, ndmin=1))


def legs_to(pool, **positions):
    """Return the result whose profiles picked these positions, None for one that failed; the first one is primary."""
    legs = {name: None if at is None else picked(pool, name, at) for name, at in positions.items()}
    return SchedulingResult(Destination(next(iter(legs.values()))), legs, {})


def sent_to(pool, *positions):
    """Return the result of one profile that picked a target and its fallbacks."""
    return legs_to(pool, default=positions)
