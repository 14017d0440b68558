# SPDX-License-Identifier: Apache-2.0
"""Decisions of all placements: those of the hub, and our own evaluation where it made none."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from epp.clusters.hub import Hub
from epp.clusters.placement.evaluation import Evaluation, Situation, evaluate
from epp.clusters.placement.groups import group_of
from epp.clusters.placement.selectors import in_cluster_sets
from epp.framework.clusters import PlacementStatus
from epp.kube.objects.ocm import PlacementDecision
from epp.kube.objects.placement import Placement

Evaluate: TypeAlias = Literal["auto", "always", "never"]


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What one placement decided."""

    clusters: Mapping[str, PlacementStatus] = {}
    """Chosen clusters."""
    evaluation: Evaluation | None = None
    """Our own evaluation; None for decisions of the hub."""
    scored_at: float = 0.0
    """When the scores of our own evaluation last changed, in seconds since the epoch."""
    until: float | None = None
    """When time alone may change it."""

    def status(self, cluster: str) -> PlacementStatus:
        """Return what it decided on a cluster."""
        return self.clusters.get(cluster) or (_LEFT_OUT if self.clusters else _NONE_CHOSEN)


_LEFT_OUT = PlacementStatus()
_NONE_CHOSEN = PlacementStatus(any_chosen=False)


def decided(
    hub: Hub,
    scores: Mapping[str, Mapping[str, float]],
    before: Mapping[str, Decided],
    now: float,
    mode: Evaluate = "auto",
) -> dict[str, Decided]:
    """Return the decisions of every placement by `namespace/name`; `before` are those of the last time.

    Placements are evaluated in the order of their names, each with the newest decisions of the others in view. Where
    only scores changed and the choice did not, an evaluation stays for `scoreRateLimit` as it was.
    """
    found: dict[str, Decided] = {}
    for name in sorted({*hub.placements, *hub.pages}):
        pages, placement = hub.pages.get(name, ()), hub.placements.get(name)
        if placement is None or not _is_ours(placement, pages, hub, mode):
            found[name] = _of_pages(pages)
    for name in sorted(hub.placements.keys() - found.keys()):
        others = {other: one for other, one in {**before, **found}.items() if other != name}
        earlier = before.get(name, Decided())
        if earlier.evaluation is None and name in hub.pages:
            earlier = _of_pages(hub.pages[name])
        found[name] = _evaluated(hub.placements[name], hub, scores, others=others, before=earlier, now=now)
    return found


def _is_ours(placement: Placement, pages: Iterable[PlacementDecision], hub: Hub, mode: Evaluate) -> bool:
    if placement.disabled or mode == "never" or not hub.clusters:
        return False
    return mode == "always" or not pages


def _of_pages(pages: Iterable[PlacementDecision]) -> Decided:
    return Decided(
        clusters={
            each.cluster_name: PlacementStatus(chosen=True, score=each.score, group=page.group)
            for page in pages
            for each in page.decisions
        }
    )


def _evaluated(
    placement: Placement,
    hub: Hub,
    scores: Mapping[str, Mapping[str, float]],
    *,
    others: Mapping[str, Decided],
    before: Decided,
    now: float,
) -> Decided:
    situation = Situation(
        clusters=in_cluster_sets(
            placement, hub.clusters.values(), hub.sets, hub.bound_sets(placement.metadata.namespace)
        ),
        chosen=before.clusters.keys(),
        counts=Counter(
            cluster
            for name, each in others.items()
            if name in hub.placements or name in hub.pages
            for cluster in each.clusters
        ),
        scores=scores,
        now=now,
    )
    result = evaluate(placement, situation)
    groups = group_of(result.groups)
    clusters = {
        name: PlacementStatus(chosen=True, score=result.totals[name], group=group) for name, group in groups.items()
    }
    last = before.evaluation
    alike = last is not None and {name: one.group for name, one in before.clusters.items()} == groups
    if alike and before.clusters != clusters and now < before.scored_at + placement.score_rate_limit:
        due = before.scored_at + placement.score_rate_limit
        return msgspec.structs.replace(before, until=min(due, due if result.until is None else result.until))
    at = before.scored_at if alike and before.clusters == clusters else now
    return Decided(clusters=clusters, evaluation=result, scored_at=at, until=result.until)
