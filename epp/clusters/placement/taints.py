# SPDX-License-Identifier: Apache-2.0
"""Taints of clusters, and the tolerations of a placement."""

from collections.abc import Iterable
from typing import NamedTuple

from epp.framework.clusters import ClusterTaint, TaintEffect
from epp.kube.objects.placement import Toleration


class Tolerance(NamedTuple):
    """How the taints of a cluster bear on a placement."""

    selectable: bool
    """Whether the cluster may be chosen."""
    preferred: bool
    """Whether no taint asks to prefer other clusters."""
    until: float | None
    """When that may change, in seconds since the epoch; None for never."""


def tolerance(
    taints: Iterable[ClusterTaint], tolerations: Iterable[Toleration], now: float, *, chosen: bool
) -> Tolerance:
    """Return how taints bear on a placement that has, or has not, chosen the cluster before.

    NoSelectIfNew keeps away only what was not chosen before. The time of a toleration counts from the addition of the
    taint; a taint of unknown age is not tolerated for a time.
    """
    tolerations = tuple(tolerations)
    selectable = preferred = True
    ends: list[float] = []
    for taint in taints:
        if taint.effect is TaintEffect.NO_SELECT_IF_NEW and chosen:
            continue
        tolerated, until = _tolerated(taint, tolerations, now)
        if until is not None:
            ends.append(until)
        if not tolerated and taint.effect is TaintEffect.PREFER_NO_SELECT:
            preferred = False
        elif not tolerated:
            selectable = False
    return Tolerance(selectable, preferred, min(ends, default=None))


def _tolerated(taint: ClusterTaint, tolerations: Iterable[Toleration], now: float) -> tuple[bool, float | None]:
    """Return whether one of the tolerations fits, and when the last one that does ends."""
    ends: list[float] = []
    for each in tolerations:
        if not _fits(taint, each):
            continue
        if each.seconds is None:
            return True, None
        if taint.since is not None and now < taint.since + each.seconds:
            ends.append(taint.since + each.seconds)
    return bool(ends), max(ends, default=None)


def _fits(taint: ClusterTaint, toleration: Toleration) -> bool:
    return (
        toleration.effect in {None, taint.effect}
        and toleration.key in {"", taint.key}
        and (toleration.exists or toleration.value == taint.value)
    )
