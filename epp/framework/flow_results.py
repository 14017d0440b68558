# SPDX-License-Identifier: Apache-2.0
"""What plugins of flow control return, checked: for requests, and in trials."""

from collections.abc import Sequence
from math import isnan

import numpy as np

from epp.framework.arrays import Floats, ResultError


def as_fullness(value: object, count: int) -> Floats:
    """Return an array of a number for each of `count` candidates; raises ResultError."""
    try:
        found: Floats = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ResultError(f"returned what is no array of numbers: {error}") from error
    if found.shape != (count,):
        raise ResultError(f"returned an array of shape {found.shape} for {count} candidates")
    if np.isnan(found).any():
        raise ResultError(
            "returned NaN for an endpoint: a fullness is 0 or more, also of one that has reported nothing"
        )
    return found


def as_number(value: object) -> float:
    """Return a number; raises ResultError for something else, and for NaN, which has no place in an order."""
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise ResultError(f"returned {type(value).__name__} instead of a number")
    number = float(value)
    if isnan(number):
        raise ResultError("returned NaN instead of a number")
    return number


def as_ceilings(value: object, count: int) -> Sequence[float]:
    """Return a number for each of `count` priorities; raises ResultError."""
    found = as_numbers(value)
    if len(found) != count:
        raise ResultError(f"returned {len(found)} ceilings for {count} priorities")
    return found


def as_numbers(value: object) -> tuple[float, ...]:
    """Return several numbers; raises ResultError."""
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str):
        raise ResultError(f"returned {type(value).__name__} instead of numbers")
    return tuple(map(as_number, value))


def as_bool(value: object) -> bool:
    """Return a bool; raises ResultError for something else."""
    if not isinstance(value, (bool, np.bool_)):
        raise ResultError(f"returned {type(value).__name__} instead of true or false")
    return bool(value)
