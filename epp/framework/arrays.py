# SPDX-License-Identifier: Apache-2.0
"""The array types that cross plugin boundaries."""

from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
"""One number per candidate, or per slot if documented."""

Mask: TypeAlias = NDArray[np.bool_]
"""One truth value per candidate, or per slot if documented."""

Positions: TypeAlias = NDArray[np.intp]
"""Positions within the candidates, or slots of the snapshot if documented."""

_ONE = (1,)
_FLOAT64, _INTP = np.dtype(np.float64), np.dtype(np.intp)
ROUNDING = 1e-9
"""Tolerance for scores outside [0, 1], because of rounding errors."""
_T = TypeVar("_T")


def read_only(value: _T) -> _T:
    """Return the value; an array is made read-only."""
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return value


def lowest(values: NDArray[Any]) -> float:
    """Return the least number, or NaN if the array has NaN; raises ValueError for an empty array.

    For small arrays, this and the functions below are three times as fast as those of NumPy.
    """
    found: float = values.item(values.argmin())
    return found


def highest(values: NDArray[Any]) -> float:
    """Return the greatest number, or NaN if the array has NaN; raises ValueError for an empty array."""
    found: float = values.item(values.argmax())
    return found


def all_true(mask: Mask) -> bool:
    """Return whether all values are true; true for an empty array."""
    return not len(mask) or mask.item(mask.argmin())


def any_true(mask: Mask) -> bool:
    return len(mask) > 0 and mask.item(mask.argmax())


def everyone(count: int) -> Mask:
    """Return a mask of `count` true values. A fast `np.ones`."""
    mask = np.empty(count, dtype=np.bool_)
    mask.fill(True)  # noqa: FBT003  signature of NumPy
    return mask


def within(values: Floats, low: float, high: float) -> Floats:
    """Return the values clamped to the limits; NaN is kept. A fast `np.clip`."""
    return np.minimum(np.maximum(values, low), high)


class ResultError(TypeError):
    """A plugin returned something of the wrong shape or type."""


def as_mask(value: object, count: int) -> Mask:
    """Return an array of `count` bools, from an array or a list; raises ResultError."""
    mask = np.asarray(value)
    if mask.shape != (count,) or mask.dtype.kind != "b":
        raise ResultError(f"returned {_described(mask)} instead of one bool for each of {count} candidates")
    return mask


def are_scores(value: object, count: int) -> TypeGuard[Floats]:
    """Return whether this is an array of `count` numbers in [0, 1], which nearly every scorer returns."""
    return (
        type(value) is np.ndarray
        and value.dtype is _FLOAT64
        and value.shape == (count,)
        and value.item(value.argmin()) >= 0.0  # false for NaN, like the next one
        and value.item(value.argmax()) <= 1.0
    )


def as_floats(value: object, count: int, what: str) -> Floats:
    """Return an array of `count` numbers, from an array or a list; raises ResultError, which calls them `what`."""
    try:
        found: Floats = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ResultError(f"returned a value that is not an array of numbers: {error}") from error
    if found.shape != (count,):
        raise ResultError(f"returned {_described(found)} instead of one {what} for each of {count} candidates")
    return found


def as_scores(value: object, count: int, *, strict: bool = False) -> Floats:
    """Return an array of `count` numbers, from an array or a list; raises ResultError.

    With `strict`, NaN, infinity and values outside [0, 1] raise ValueError.
    """
    scores = as_floats(value, count, "score")
    if strict and not np.isfinite(scores).all():
        raise ValueError(f"returned {scores.tolist()}: NaN and infinity count as 0")
    if strict and ((scores < -ROUNDING) | (scores > 1.0 + ROUNDING)).any():
        raise ValueError(f"returned {scores.tolist()}: values below 0 and above 1 count as these")
    return scores


def as_positions(value: object, count: int) -> Positions:
    """Return an array of at least one position below `count`; raises ResultError."""
    if type(value) is np.ndarray and value.dtype is _INTP and value.shape == _ONE and 0 <= value.item() < count:
        return value  # nearly every picker returns this
    positions = np.asarray(value)
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise ResultError(f"returned {_described(positions)} instead of positions among {count} candidates")
    if not len(positions):
        raise ResultError("returned no position; a picker picks at least one candidate")
    if lowest(positions) < 0 or highest(positions) >= count:
        raise ResultError(f"returned positions {positions.tolist()} among {count} candidates, counted from 0")
    return positions if positions.dtype is _INTP else positions.astype(np.intp)


def _described(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} of shape {array.shape}"
