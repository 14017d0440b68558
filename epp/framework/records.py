# SPDX-License-Identifier: Apache-2.0
"""One record for each slot of a snapshot, and memoised values derived from the records."""

from collections.abc import Callable, Sequence
from itertools import compress, count, islice
from operator import is_not
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, cast

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, Mask, read_only

T = TypeVar("T")
D = TypeVar("D")
A = TypeVarTuple("A")

Derivation: TypeAlias = tuple[Any, ...]
"""A function and its arguments, preceded by a NumPy type if the function is called for each record."""

_MEMO_LIMIT = 1024
_MOST_REUSABLE = 64
"""Maximum number of arrays that the next records can reuse; requests of clients may create more."""
_MOST_UNUSED = 256
"""Number of later records that do not use an array before it is dropped, since it keeps its own records alive."""


class _Former(NamedTuple):
    """An array derived from former records."""

    values: tuple[Any, ...]
    array: NDArray[Any]
    unused: int
    """Number of later records that did not use it."""


class Records(Generic[T]):
    """One record for each slot, and a memo of values derived from all of them.

    Values derived from single records are copied from the `former` records for each unchanged record.
    """

    __slots__ = ("_changes", "_each", "_former", "_memo", "values")

    def __init__(self, values: tuple[T, ...], former: "Records[T] | None" = None) -> None:
        self.values = values
        self._memo: dict[Derivation, object] = {}
        self._each: dict[Derivation, NDArray[Any]] = {}
        self._former = {} if former is None else former.reusable()
        self._changes: tuple[tuple[T, ...] | None, list[int]] = (None, [])
        """Former values, and the slots that have changed since."""

    def derive(self, build: Callable[[tuple[T, ...], *A], D], *arguments: *A) -> D:
        """Return `build(values, *arguments)`, memoised by function and arguments; an array is made read-only.

        `build` is a module-level function or a method, and the arguments are hashable. Raises TypeError for a function
        that is created at every call, such as a lambda, because the memo would never have it.
        """
        key = (build, *arguments)
        found = self._memo.get(key, _MISSING)
        if found is _MISSING:
            _require_lasting(key)
            if len(self._memo) >= _MEMO_LIMIT:  # arguments may come from clients
                self._memo.clear()
            found = self._memo[key] = read_only(build(self.values, *arguments))
        return cast("D", found)

    def derive_numbers(self, number: Callable[[T, *A], float | None], *arguments: *A) -> Floats:
        """Return `number(value, *arguments)` for each slot, NaN for None; memoised like `derive`.

        The function must depend only on its arguments: an unchanged record keeps its number.
        """
        return self._derive_each((np.float64, number, *arguments))

    def derive_mask(self, test: Callable[[T, *A], bool], *arguments: *A) -> Mask:
        """Return `test(value, *arguments)` for each slot, like `derive_numbers`."""
        return self._derive_each((np.bool_, test, *arguments))

    def derive_objects(self, function: Callable[[T, *A], D], *arguments: *A) -> NDArray[np.object_]:
        """Return `function(value, *arguments)` for each slot, like `derive_numbers`."""
        return self._derive_each((np.object_, function, *arguments))

    def reusable(self) -> dict[Derivation, _Former]:
        """Return the arrays that the next records can reuse: first those in use, then the latest of the others."""
        older = {
            key: former._replace(unused=former.unused + 1)
            for key, former in self._former.items()
            if former.unused < _MOST_UNUSED
        }
        recent = {key: _Former(self.values, array, 0) for key, array in self._each.items()}
        return dict(islice((recent | older).items(), _MOST_REUSABLE))

    def _derive_each(self, key: Derivation) -> NDArray[Any]:
        found = self._each.get(key)
        if found is not None:
            return found
        _require_lasting(key[1:])
        if len(self._each) >= _MEMO_LIMIT:
            self._each.clear()
        dtype, function, *arguments = key
        values = self.values
        former = self._former.pop(key, None)
        if former is None or len(former.values) > len(values):
            found = _array([function(record, *arguments) for record in values], dtype)
        else:
            slots = self.changed_since(former.values)
            found = np.empty(len(values), dtype=dtype)
            found[: len(former.array)] = former.array
            found[slots] = _array([function(values[slot], *arguments) for slot in slots], dtype)
        self._each[key] = read_only(found)
        return self._each[key]

    def changed_since(self, former: tuple[T, ...]) -> Sequence[int]:
        """Return the slots whose record differs from the former one, or is new, in ascending order."""
        if self._changes[0] is not former:
            changed = list(compress(count(), map(is_not, self.values, former)))
            self._changes = former, changed + list(range(len(former), len(self.values)))
        return self._changes[1]


_MISSING = object()


def _array(values: Sequence[object], dtype: type[np.generic]) -> NDArray[Any]:
    if dtype is np.object_:  # np.array would unpack sequences
        return np.fromiter(values, dtype=dtype, count=len(values))
    return np.array(values, dtype=dtype)


def _require_lasting(key: tuple[object, ...]) -> None:
    for part in key:
        if isinstance(part, tuple):
            _require_lasting(part)
        elif callable(part):
            name = getattr(part, "__qualname__", repr(part))  # a functools.partial has no name
            if "<locals>" in name or name == repr(part):
                raise TypeError(
                    f"cannot memoise {name}: define it at module level or as a method, and pass its inputs as arguments"
                )
