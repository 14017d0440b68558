# SPDX-License-Identifier: Apache-2.0
"""Tolerations of taints of clusters: from what time on a taint counts."""

from collections.abc import Iterable
from math import inf
from typing import Literal

from epp.framework.clusters import ClusterStatus, ClusterTaint, TaintEffect
from epp.framework.limits import NonNegative
from epp.framework.plugin import Parameters


class ClusterToleration(Parameters, frozen=True):
    """Taints that do not count, as in `tolerations` of a Placement."""

    key: str = ""
    """Key of the taints; empty for all keys, with the operator `Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the value as well, `Exists` takes any value."""
    value: str = ""
    """Value of the taints, with the operator `Equal`."""
    effect: TaintEffect | None = None
    """Effect of the taints: `NoSelect`, `PreferNoSelect` or `NoSelectIfNew`; left out for all effects."""
    toleration_seconds: NonNegative | None = None
    """Time after its addition for which a taint is tolerated; left out for ever. A taint of unknown age is tolerated.
    Without effect on `NoSelectIfNew`."""

    def __post_init__(self) -> None:
        """Refuse what would tolerate nothing; raises ValueError."""
        if not self.key and self.operator == "Equal":
            raise ValueError("key is empty: write the key of a taint, or operator: Exists to tolerate all taints")
        if self.value and self.operator == "Exists":
            raise ValueError(f"value is {self.value!r}, and operator Exists takes any value: remove one of them")

    def tolerates(self, taint: ClusterTaint) -> bool:
        """Return whether it is for this taint."""
        return (
            self.key in {"", taint.key}
            and (self.operator == "Exists" or self.value == taint.value)
            and self.effect in {None, taint.effect}
        )


def counts_from(status: ClusterStatus, effect: TaintEffect, tolerations: Iterable[ClusterToleration]) -> float:
    """Return from what time on a taint of that effect counts, in seconds since the epoch: -inf always, inf never."""
    return min((_tolerated_until(taint, tolerations) for taint in status.taints if taint.effect is effect), default=inf)


def _tolerated_until(taint: ClusterTaint, tolerations: Iterable[ClusterToleration]) -> float:
    return max((_end(taint, each) for each in tolerations if each.tolerates(taint)), default=-inf)


def _end(taint: ClusterTaint, toleration: ClusterToleration) -> float:
    seconds = toleration.toleration_seconds
    if seconds is None or taint.since is None or taint.effect is TaintEffect.NO_SELECT_IF_NEW:
        return inf
    return taint.since + seconds
