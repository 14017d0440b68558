# SPDX-License-Identifier: Apache-2.0
"""Clusters of endpoints, and their statuses with a hub, as arrays: built once for each change, indexed by slot."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVarTuple

import numpy as np

from epp.framework.arrays import Floats, Mask, Positions, read_only
from epp.framework.candidates import Candidates
from epp.framework.clusters import CLUSTER, ClusterStatus
from epp.framework.endpoint import Endpoint
from epp.framework.records import Records
from epp.framework.snapshot import Snapshot

A = TypeVarTuple("A")


def status_numbers(
    candidates: Candidates, number: Callable[[ClusterStatus, *A], float | None], *arguments: *A
) -> Floats:
    """Return `number(status, *arguments)` for each candidate, NaN for None.

    Memoised by function and arguments: `number` is a module-level function or a method, the arguments are hashable.
    """
    return candidates.snapshot.records(CLUSTER).derive_numbers(number, *arguments)[candidates.slots]


def status_mask(candidates: Candidates, test: Callable[[ClusterStatus, *A], bool], *arguments: *A) -> Mask:
    """Return `test(status, *arguments)` for each candidate; memoised like `status_numbers`."""
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
    """The clusters of the pool of one plugin, numbered again only when endpoints or their statuses change."""

    __slots__ = ("_clusters", "_of")

    def __init__(self) -> None:
        self._of: tuple[Records[Endpoint | None], object] | None = None
        self._clusters = Clusters((), np.empty(0, dtype=np.intp))

    def of(self, snapshot: Snapshot) -> Clusters:
        """Return the clusters of a snapshot: by the status of an endpoint, or else by its own `cluster`."""
        endpoints, statuses = snapshot.endpoints, snapshot.attributes.get(CLUSTER.name)
        before = self._of
        if before is None or before[0] is not endpoints or before[1] is not statuses:
            self._of = endpoints, statuses
            self._clusters = _numbered(endpoints.values, snapshot.records(CLUSTER).values)
        return self._clusters


def _numbered(endpoints: Sequence[Endpoint | None], statuses: Sequence[Any]) -> Clusters:
    numbers: dict[str, int] = {}
    of_slot = np.empty(len(endpoints), dtype=np.intp)
    for slot, (endpoint, status) in enumerate(zip(endpoints, statuses, strict=True)):
        name = status.cluster or ("" if endpoint is None else endpoint.cluster)
        of_slot[slot] = numbers.setdefault(name, len(numbers))
    return Clusters(tuple(numbers), read_only(of_slot))
