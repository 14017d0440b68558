# SPDX-License-Identifier: Apache-2.0
"""Prefer endpoints by the score of their cluster from a hub or an external scorer."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import structlog
from msgspec import Meta

from epp.framework import ACCELERATOR, Candidates, Filter, FilterParameters, Floats, Mask, Request, Scorer
from epp.framework.arrays import all_true, any_true, everyone
from epp.framework.clusters import (
    CLUSTER,
    MOST_SCORE,
    MOST_WEIGHT,
    USAGE_ALIASES,
    USAGE_SCORE,
    ClusterIndex,
    ClusterStatus,
    NetworkSeconds,
    status_mask,
    status_numbers,
)
from epp.framework.limits import Positive
from epp.framework.plugin_status import PluginMetric, Sample
from epp.framework.refusals import NoClustersError
from epp.framework.result import DropCause
from epp.framework.scoring import DYNAMIC_SCORES, DynamicScoreColumn, DynamicScores
from epp.framework.snapshot import ROUND_TRIP

NEUTRAL = 0.5
_WORST = {"latency": 0.2, "networkCost": 0.1}
"""Values that score 0: seconds, and dollars for a gigabyte."""
_MOST_NAMED = 8

_MISSING = PluginMetric(
    "cluster_score_missing",
    "Endpoints that were scored without a score of their cluster, by reason: missing or expired.",
    ("reason",),
    is_counter=True,
)

_log = structlog.get_logger()


class ClusterScoreParameters(FilterParameters, frozen=True):
    """The score, its weight, and the treatment of missing scores."""

    source: Literal["addon", "placement", "dynamic", "latency", "networkCost"] = "addon"
    """`addon`: the item `scoreName` of the AddOnPlacementScore `resourceName`. `placement`: the score in the decisions
    of `placement`. `dynamic`: the score `scoreName` of a `dynamic-score-source`. `latency`: the seconds of a round trip
    to the cluster, declared or measured. `networkCost`: the declared dollars for a gigabyte to and from it."""
    resource_name: str = USAGE_SCORE
    """Name of the AddOnPlacementScore objects, one for each cluster."""
    score_name: str = ""
    """Name of the item, such as `gpuClusterAvailable`, or of the dynamic score."""
    placement: str = ""
    """`namespace/name` of a Placement."""
    worst: Positive | None = None
    """Value that scores 0: seconds of latency (default 0.2), or dollars for a gigabyte (default 0.1)."""
    weight: Annotated[float, Meta(ge=-MOST_WEIGHT, le=MOST_WEIGHT)] = 1.0
    """Weight in profiles that do not set one. A negative weight prefers endpoints with lower scores."""
    missing: Literal["neutral", "worst", "fail"] = "neutral"
    """Treatment of endpoints without a score, or with an expired one: `neutral` gives them 0.5, `worst` 0, `fail` drops
    them. If no endpoint is left, the request is refused with 503."""

    def __post_init__(self) -> None:
        if self.source == "placement":
            if "/" not in self.placement.strip("/"):
                raise ValueError(f"placement is {self.placement!r}: write the namespace/name of a Placement")
            if self.score_name:
                raise ValueError(f"scoreName is {self.score_name!r}, and a placement has one score: remove it")
            return
        if self.source in _WORST:
            if self.score_name or self.placement:
                raise ValueError(f"source {self.source} takes neither scoreName nor placement: remove them")
            return
        if self.worst is not None:
            raise ValueError("worst has no effect: write source: latency or source: networkCost as well")
        if not self.score_name:
            raise ValueError("scoreName is missing: write the name of the score, such as gpuClusterAvailable")
        if self.placement:
            raise ValueError(f"placement is {self.placement!r}, and has no effect: write source: placement as well")


class ClusterScore(Scorer[ClusterScoreParameters], Filter[Any]):
    """`(value + 100) / 200`, limited to [0, 1]: the score of the endpoint's cluster on the scale of a hub.

    The scores of a placement are unbounded sums: the lowest among the candidates gives 0, the highest 1; equal scores
    give 1. A dynamic score is the first available score of the endpoint's pod, device, node, app or cluster. Latency
    and network cost give `1 - value / worst`, at least 0, and 1 for the local cluster.

    A negative `weight` gives 1 minus the result, so that totals stay between 0 and the sum of the weights. The weight
    in a profile replaces the amount of `weight`, not its sign.
    """

    plugin_type = "cluster-score"
    drops = DropCause.AVAILABILITY
    drop_means = "has no score"
    zero_means = "has the lowest score of a cluster, or none"
    metrics = (_MISSING,)

    def setup(self) -> None:
        parameters = self.parameters
        self.default_weight = abs(parameters.weight)
        self.keeps_all = parameters.missing != "fail"
        alias = USAGE_ALIASES.get(parameters.score_name) if parameters.resource_name == USAGE_SCORE else None
        self._item = alias if alias and parameters.source == "addon" else parameters.score_name
        self._key = f"{parameters.resource_name}/{self._item}"
        self._column = DynamicScoreColumn(parameters.score_name)
        self._clusters = ClusterIndex()
        self._network = NetworkSeconds()
        self._worst = parameters.worst or _WORST.get(parameters.source, 0.0)
        self._counts = {"missing": 0, "expired": 0}
        self._warned: frozenset[str] = frozenset()
        self._warned_records: object = None
        if parameters.source == "dynamic":
            self.reads = (DYNAMIC_SCORES,)
            self.may_read = (ACCELERATOR, CLUSTER)
        else:
            self.reads = (CLUSTER,)
            self.may_read = (ROUND_TRIP,) if parameters.source == "latency" else ()

    @property
    def warnings(self) -> Sequence[str]:
        wanted = self.parameters.score_name
        if self._item == wanted:
            return ()
        return [f"scoreName {wanted!r} is not an item of {USAGE_SCORE}, {self._item!r} is used: write that"]

    @property
    def samples(self) -> Sequence[Sample]:
        return [Sample(_MISSING, count, (reason,)) for reason, count in self._counts.items()]

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        if self.keeps_all:
            return everyone(len(candidates))
        known = ~np.isnan(self._values(candidates))
        if not all_true(known):
            self._count(request, candidates, ~known)
            if not any_true(known) and not self.parameters.fallback_on_empty:
                raise NoClustersError(f"no cluster has a score {self._described}")
        return known

    def score(self, request: Request, candidates: Candidates) -> Floats:
        values = self._values(candidates)
        if self.parameters.source == "placement":
            scores = _scaled_by_range(values)
        elif self._worst:
            scores = np.maximum(1.0 - values / self._worst, 0.0)
        else:
            scores = np.clip((values + MOST_SCORE) / (2 * MOST_SCORE), 0.0, 1.0)
        if self.parameters.weight < 0:
            scores = 1.0 - scores
        missing = np.isnan(scores)
        if any_true(missing):
            self._count(request, candidates, missing)
            scores = np.where(missing, 0.0 if self.parameters.missing == "worst" else NEUTRAL, scores)
        return scores

    @property
    def _described(self) -> str:
        match self.parameters.source:
            case "placement":
                return f"of placement {self.parameters.placement}"
            case "dynamic":
                return repr(self._item)
            case "addon":
                return self._key
            case source:
                return source

    def _values(self, candidates: Candidates) -> Floats:
        """Return the values in their own unit, NaN if missing."""
        match self.parameters.source:
            case "dynamic":
                return self._column.of(candidates.snapshot)[candidates.slots]
            case "placement":
                return status_numbers(candidates, _placement_score, self.parameters.placement)
            case "latency":
                network = self._network.of(candidates.snapshot)
                return np.zeros(len(candidates)) if network is None else network[candidates.slots]
            case "networkCost":
                return status_numbers(candidates, _network_cost)
            case _:
                return status_numbers(candidates, _add_on_score, self._key)

    def _count(self, request: Request, candidates: Candidates, missing: Mask) -> None:
        if request.dry_run:
            return
        expired = missing & self._expired(candidates)
        count = int(np.count_nonzero(expired))
        self._counts["expired"] += count
        self._counts["missing"] += int(np.count_nonzero(missing)) - count
        records = candidates.snapshot.attributes.get(self.reads[0].name)
        if records is not self._warned_records:  # once for each change
            self._warned_records = records
            self._warn(candidates, missing)

    def _expired(self, candidates: Candidates) -> Mask:
        if self.parameters.source == "dynamic":
            records = candidates.snapshot.records(DYNAMIC_SCORES)
            return records.derive_mask(_is_expired_dynamic, self._item)[candidates.slots]
        return status_mask(candidates, _is_expired, self._key)

    def _warn(self, candidates: Candidates, missing: Mask) -> None:
        """Log the clusters that newly lack a score."""
        clusters = self._clusters.of(candidates.snapshot)
        numbers = set(clusters.numbers[candidates.slots[missing]].tolist())
        names = frozenset(clusters.names[number] or "(local)" for number in numbers)
        new = sorted(names - self._warned)
        self._warned = names
        if new:
            _log.warning(
                "cluster score missing or expired",
                plugin=self.name,
                score=self._described,
                clusters=new[:_MOST_NAMED],
                treated_as=self.parameters.missing,
            )


def _scaled_by_range(values: Floats) -> Floats:
    """Scale values from their range to 0..1; equal values give 1, and NaN stays."""
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    if low == high:
        return np.where(np.isnan(values), np.nan, 1.0)
    scores: Floats = (values - low) / (high - low)
    return scores


def _add_on_score(status: ClusterStatus, key: str) -> float | None:
    return status.scores.get(key)


def _placement_score(status: ClusterStatus, placement: str) -> float | None:
    found = status.placements.get(placement)
    return None if found is None or not found.chosen else found.score


def _network_cost(status: ClusterStatus) -> float | None:
    return 0.0 if status.local or not status.cluster else status.transfer_cost


def _is_expired(status: ClusterStatus, key: str) -> bool:
    return key in status.expired


def _is_expired_dynamic(scores: DynamicScores, name: str) -> bool:
    found = scores.by_name.get(name)
    return found is not None and found.expired
