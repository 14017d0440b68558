# SPDX-License-Identifier: Apache-2.0
"""Objects by key, brought up to date at the cost of what changed: a pool of thousands changes pod by pod."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

from epp.kube.objects.base import Object

O = TypeVar("O", bound=Object)  # noqa: E741  an object
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Difference(Generic[O]):
    """Removed and added objects; for a changed object, both versions."""

    gone: tuple[O, ...] = ()
    new: tuple[O, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.gone or self.new)


def difference(before: Mapping[str, O], now: Mapping[str, O]) -> Difference[O]:
    """Compare two moments by identity: an object is decoded again when it changes."""
    return Difference(
        tuple(each for name, each in before.items() if now.get(name) is not each),
        tuple(each for name, each in now.items() if before.get(name) is not each),
    )


def reindexed(
    index: Mapping[K, tuple[O, ...]], changes: Difference[O], keys: Callable[[O], AbstractSet[K]]
) -> Mapping[K, tuple[O, ...]]:
    """Return the index after the changes: objects by each of their keys, those of one key in the order of their ids."""
    if not changes:
        return index
    gone: defaultdict[K, set[int]] = defaultdict(set)
    new: defaultdict[K, list[O]] = defaultdict(list)
    for each in changes.gone:
        for key in keys(each):
            gone[key].add(id(each))
    for each in changes.new:
        for key in keys(each):
            new[key].append(each)
    found = dict(index)
    for key, ids in gone.items():
        kept = tuple(each for each in found.pop(key, ()) if id(each) not in ids)
        if kept:
            found[key] = kept
    for key, added in new.items():
        members = (*found.get(key, ()), *added)
        found[key] = members if len(members) == 1 else tuple(sorted(members, key=_id))
    return found


def _id(each: Object) -> str:
    return each.id
