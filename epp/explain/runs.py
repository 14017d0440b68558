# SPDX-License-Identifier: Apache-2.0
"""Profile runs of a record: dropped endpoints of each filter with reasons, and scores by scorer and endpoint."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite

import numpy as np

from epp.explain.record import CandidateScore, Drop, Failure, FilterStep, ProfileRun, ScorerStep
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, Positions
from epp.framework.candidates import Candidates
from epp.framework.clusters import NetworkSeconds
from epp.framework.messages import printable
from epp.framework.request import Request
from epp.framework.result import DropCause, FilterTrace, ProfileAttempt, ProfileResult, ScoreTrace
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, KV_USAGE, METRICS_AT, RUNNING, WAITING, Snapshot
from epp.routing.scheduling.profile import AGE_STEP, Profile, ProfileFilter, seen

MOST_LISTED = 32
"""Maximum number of endpoints in each list of a record."""
_MOST_TEXT = 200
_DIGITS = 6
_NETWORK = NetworkSeconds()
_NO_PICKS: Positions = np.empty(0, dtype=np.intp)
_BY_CAUSE: Mapping[DropCause, str] = {
    DropCause.CONSTRAINT: "does not match the request",
    DropCause.AVAILABILITY: "is not ready",
    DropCause.STALE: "has not reported for too long",
    DropCause.SATURATION: "is too busy",
    DropCause.UNSTATED: "",
}
"""Default reason of a filter, by the cause of its drops."""


def profile_run(
    request: Request,
    name: str,
    run: ProfileResult | ProfileAttempt,
    profile: Profile | None,
    *,
    primary: bool = False,
    failure: Failure | None = None,
) -> ProfileRun:
    """Return a run in the format of records; `profile` gives the reasons, None if it no longer exists."""
    considered = before_filters(run)
    if isinstance(run, ProfileAttempt):
        picked, picker = _NO_PICKS, ""
        left = _of_slots(considered, run.filters[-1].slots) if run.filters else considered
        totals = weighted_sum(run.scores, len(left))
    else:
        left, picked, totals, picker = run.candidates, run.picked, run.totals, run.picker
    scores = run.scores
    listed = _listed(totals, picked) if scores or len(picked) else []
    zero_means = {} if profile is None else {each.scorer.name: each.scorer.zero_means for each in profile.scorers}
    return ProfileRun(
        name=printable(name),
        primary=primary,
        failure=failure,
        considered=len(considered),
        filters=tuple(_filter_steps(request, considered, run.filters, profile)),
        scorers=tuple(
            ScorerStep(
                plugin=trace.plugin,
                weight=trace.weight,
                problem=printable(trace.problem, _MOST_TEXT),
                zero_means=zero_means.get(trace.plugin, ""),
            )
            for trace in scores
        ),
        candidates=tuple(_candidate_scores(left, scores, totals, picked, listed)),
        candidates_more=len(left) - len(listed) if listed else 0,
        picker=picker,
    )


def before_filters(run: ProfileResult | ProfileAttempt) -> Candidates:
    if isinstance(run, ProfileAttempt) or not run.filters:
        return run.candidates
    return _of_slots(run.candidates, run.considered)


def name_of(snapshot: Snapshot, slot: int) -> str:
    """Return the name of the endpoint in a slot; empty for a free one."""
    endpoint = snapshot.endpoints.values[slot]
    return "" if endpoint is None else endpoint.name


def accelerator_of(tag: AcceleratorTag) -> str:
    """Return the class of an accelerator, or else its model; empty if both are unknown."""
    return tag.primary_class or tag.model


def number(value: float) -> float | None:
    """Return a number in the format of records; None if it is not finite."""
    return round(float(value), _DIGITS) if isfinite(value) else None


def _of_slots(like: Candidates, slots: Positions) -> Candidates:
    return Candidates(like.snapshot, slots, profile=like.profile, peer=like.peer, now=like.now)


def _filter_steps(
    request: Request, considered: Candidates, traces: Sequence[FilterTrace], profile: Profile | None
) -> Iterator[FilterStep]:
    members = {} if profile is None else {member.filter.name: member for member in profile.filters}
    before = considered
    for trace in traces:
        kept = trace.slots
        out = before.slots[~np.isin(before.slots, kept)]
        dropped = _of_slots(before, out[:MOST_LISTED])
        reasons = _reasons(request, dropped, trace.plugin, members.get(trace.plugin))
        yield FilterStep(
            plugin=trace.plugin,
            before=trace.before,
            after=trace.after,
            problem=printable(trace.problem, _MOST_TEXT),
            kept=tuple(name_of(before.snapshot, slot) for slot in kept[:MOST_LISTED].tolist()),
            kept_more=max(len(kept) - MOST_LISTED, 0),
            dropped=tuple(
                Drop(endpoint=name_of(before.snapshot, slot), reason=printable(reason, _MOST_TEXT))
                for slot, reason in zip(dropped.slots.tolist(), reasons, strict=True)
            ),
            dropped_more=max(len(out) - MOST_LISTED, 0),
        )
        before = _of_slots(before, kept)


def _reasons(request: Request, dropped: Candidates, plugin: str, member: ProfileFilter | None) -> list[str]:
    """Return the reason for the drop of each candidate; empty if unknown."""
    count = len(dropped)
    if not count or (member is None and plugin != AGE_STEP):
        return [""] * count
    ages = [f"last reported {age:.1f} s ago" for age in (dropped.now - dropped.values(METRICS_AT)).tolist()]
    if member is None:
        return ages
    try:
        found = [str(reason) for reason in member.filter.why_dropped(request, seen(dropped, member.staleness))]
    except Exception:  # noqa: BLE001  a plugin may raise anything; the drops are known without it
        found = []
    otherwise = member.filter.drop_means or _BY_CAUSE[member.filter.drops]
    reasons = [reason or otherwise for reason in found] if len(found) == count else [otherwise] * count
    if member.drops_stale:
        fresh = member.fresh(dropped).tolist()
        return [reason if is_fresh else age for reason, age, is_fresh in zip(reasons, ages, fresh, strict=True)]
    return reasons


def _listed(totals: Floats, picked: Positions) -> list[int]:
    """Return the positions of the picked endpoints in order, then of the others with the best totals."""
    first = picked[:MOST_LISTED].tolist()
    chosen = set(picked.tolist())
    best = (position for position in np.argsort(-totals, kind="stable").tolist() if position not in chosen)
    return [*first, *islice(best, MOST_LISTED - len(first))]


def weighted_sum(scores: Sequence[ScoreTrace], count: int) -> Floats:
    return sum((trace.weight * trace.scores for trace in scores), np.zeros(count))


def _candidate_scores(
    left: Candidates, scores: Sequence[ScoreTrace], totals: Floats, picked: Positions, listed: Sequence[int]
) -> Iterator[CandidateScore]:
    if not listed:
        return
    ranks = {position: rank for rank, position in enumerate(picked.tolist())}
    tags = left.snapshot.records(ACCELERATOR).values
    in_flight = left.values(IN_FLIGHT)
    waiting, running, kv_usage = (left.values(column) for column in (WAITING, RUNNING, KV_USAGE))
    network = _NETWORK.of(left.snapshot)
    for position in listed:
        slot = left.slots.item(position)
        each = [trace.scores.item(position) for trace in scores]
        parts = [trace.weight * score for trace, score in zip(scores, each, strict=True)]
        tag = tags[slot]
        yield CandidateScore(
            endpoint=name_of(left.snapshot, slot),
            total=round(totals.item(position), _DIGITS),
            scores=tuple(round(score, _DIGITS) for score in each),
            contributions=tuple(round(part, _DIGITS) for part in parts),
            rank=ranks.get(position),
            accelerator=accelerator_of(tag),
            cost_per_hour=cost_of(tag),
            in_flight=int(in_flight.item(position)),
            waiting=number(waiting.item(position)),
            running=number(running.item(position)),
            kv_usage=number(kv_usage.item(position)),
            network_seconds=None if network is None else number(network.item(slot)),
        )


def cost_of(tag: AcceleratorTag) -> float | None:
    """Return the dollars per hour in the format of records; None if unknown."""
    cost = tag.cost_per_hour()
    return None if cost is None else number(cost)
