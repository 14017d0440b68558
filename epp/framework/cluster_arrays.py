# SPDX-License-Identifier: Apache-2.0
"""Clusters of endpoints, and their standings with a hub, as arrays: built once for each change, indexed by slot."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVarTuple

import numpy as np

from epp.framework.arrays import Floats, Mask, Positions, read_only
from epp.framework.candidates import Candidates
from epp.framework.clusters import CLUSTER, ClusterStanding
from epp.framework.endpoint import Endpoint
from epp.framework.records import Records
from epp.framework.snapshot import Snapshot

A = TypeVarTuple("A")


def standing_numbers(
    candidates: Candidates, number: Callable[[ClusterStanding, *A], float | None], *arguments: *A
) -> Floats:
    """Return `number(standing, *arguments)` for each candidate, NaN for None.

    Memoised by function and arguments: `number` is a module-level function or a method, the arguments are hashable.
    """
    return candidates.snapshot.records(CLUSTER).derive_numbers(number, *arguments)[candidates.slots]


def standing_mask(candidates: Candidates, test: Callable[[ClusterStanding, *A], bool], *arguments: *A) -> Mask:
    """Return `test(standing, *arguments)` for each candidate; memoised like `standing_numbers`."""
    return candidates.snapshot.records(CLUSTER).derive_mask(test, *arguments)[candidates.slots]


class Clusters(NamedTuple):
    """The clusters of a pool."""

    names: tuple[str, ...]
    """In order of their numbers; empty for endpoints whose cluster is not said: those of the local one."""
    numbers: Positions
    """Number of the cluster of each slot."""

    def named(self, name: str) -> int:
        """Return the number of a cluster; -1 for one without endpoints."""
        return self.names.index(name) if name in self.names else -1


class ClusterIndex:
    """The clusters of the pool of one plugin, numbered anew only when endpoints or their standings change."""

    __slots__ = ("_clusters", "_of")

    def __init__(self) -> None:
        self._of: tuple[Records[Endpoint | None], object] | None = None
        self._clusters = Clusters((), np.empty(0, dtype=np.intp))

    def of(self, snapshot: Snapshot) -> Clusters:
        """Return the clusters of a snapshot: by the standing of an endpoint, or else by its own `cluster`."""
        endpoints, standings = snapshot.endpoints, snapshot.attributes.get(CLUSTER.name)
        before = self._of
        if before is None or before[0] is not endpoints or before[1] is not standings:
            self._of = endpoints, standings
            self._clusters = _numbered(endpoints.values, snapshot.records(CLUSTER).values)
        return self._clusters


def _numbered(endpoints: Sequence[Endpoint | None], standings: Sequence[Any]) -> Clusters:
    numbers: dict[str, int] = {}
    of_slot = np.empty(len(endpoints), dtype=np.intp)
    for slot, (endpoint, standing) in enumerate(zip(endpoints, standings, strict=True)):
        name = standing.cluster or ("" if endpoint is None else endpoint.cluster)
        of_slot[slot] = numbers.setdefault(name, len(numbers))
    return Clusters(tuple(numbers), read_only(of_slot))
