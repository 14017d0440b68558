# SPDX-License-Identifier: Apache-2.0
"""Comparison of two configurations by their decisions on the same recorded requests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

import msgspec
import numpy as np

from epp.config import Assembly
from epp.explain.record import CandidateScore, DecisionRecord
from epp.explain.replay import Fleet, Replay, Taken, called_again, members, same_plugins
from epp.explain.runs import accelerator_of

_MOST_MOVES = 20
_DIGITS = 6
_NO_CLASS = "unknown"


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a comparison."""


class Side(_Part, frozen=True, kw_only=True):
    routed: int
    refused: Mapping[str, int]
    """Number of refused requests by error."""
    classes: Mapping[str, int]
    """Number of picks by accelerator class, or else model."""
    cost_per_hour: float | None
    """Mean price of the picked endpoints in dollars per hour; None if no price is known."""
    priced: int
    """Number of picks of endpoints with a known price."""
    waiting: float | None
    """Mean number of requests in the queue of the picked endpoint, as last reported."""
    running: float | None
    kv_usage: float | None
    in_flight: float | None
    """Mean number of requests of this picker in flight there."""
    load_unknown: int
    """Number of picks of endpoints without load in the record."""
    busiest: str
    """The endpoint with the most picks."""
    busiest_share: float
    """Share of the picks that went to the busiest endpoint, 0 to 1."""


class Shift(_Part, frozen=True, kw_only=True):
    """Requests that are routed to another class."""

    before: str
    """Accelerator class, or else model."""
    after: str
    count: int


class Comparison(_Part, frozen=True, kw_only=True):
    decisions: int
    replayed: int
    skipped: Mapping[str, int]
    """Number of records that cannot be replayed, by reason."""
    reproduced: int
    """Number of decisions of the first configuration that equal the recorded ones."""
    differing: int
    """Number of decisions that differ between the configurations."""
    cut: int
    """Number of records with only some of the endpoints, to which the replay is limited."""
    config: Side
    against: Side
    moves: Sequence[Shift]
    """Differing decisions by class before and after, most frequent first."""
    recalled: Sequence[str]
    """Plugins of the second configuration whose recorded results are used."""
    asked_anew: Mapping[str, Sequence[str]]
    """Plugins of the second configuration that are called again, with the data they read that records lack."""


class _Sums:
    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.picks: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.values: dict[str, list[float]] = {name: [] for name in ("waiting", "running", "kv_usage", "in_flight")}
        self.costs: list[float] = []
        self.load_unknown = 0

    def add(self, taken: Taken, fleet: Fleet, known: Mapping[str, CandidateScore]) -> None:
        if not taken.endpoint:
            self.refused[taken.error] += 1
            return
        self.picks[taken.endpoint] += 1
        self.classes[_place(fleet, taken)] += 1
        cost = fleet.tags[taken.slot].cost_per_hour()
        if cost is not None and isfinite(cost):
            self.costs.append(cost)
        load = known.get(taken.endpoint)
        if load is None:
            self.load_unknown += 1
            return
        for name, values in self.values.items():
            value = getattr(load, name)
            if value is not None:
                values.append(float(value))

    def side(self) -> Side:
        routed = sum(self.picks.values())
        ((busiest, most),) = self.picks.most_common(1) or [("", 0)]
        return Side(
            routed=routed,
            refused=dict(self.refused.most_common()),
            classes=dict(self.classes.most_common()),
            cost_per_hour=_mean(self.costs),
            priced=len(self.costs),
            load_unknown=self.load_unknown,
            busiest=busiest,
            busiest_share=round(most / routed, _DIGITS) if routed else 0.0,
            **{name: _mean(values) for name, values in self.values.items()},
        )


def compare(records: Sequence[DecisionRecord], config: Assembly, against: Assembly) -> Comparison:
    """Compare the second configuration with the first one, under which the records were made.

    Each decision is replayed on the recorded state of the endpoints: a different decision has no effect on later ones.
    """
    usable, skipped = _usable(records)
    fleet = Fleet(usable)
    one, other = Replay(config, config, fleet), Replay(against, config, fleet)
    last_picked = np.zeros(len(fleet.slots))
    sums, moves = (_Sums(), _Sums()), Counter[tuple[str, str]]()
    reproduced = differing = cut = 0
    for number, record in enumerate(usable, 1):
        taken, otherwise = one.take(record, last_picked), other.take(record, last_picked)
        known = {each.endpoint: each for run in record.profiles for each in run.candidates}
        for each, result in zip(sums, (taken, otherwise), strict=True):
            each.add(result, fleet, known)
        picked = "" if record.pick is None else record.pick.endpoint
        reproduced += taken.endpoint == picked
        filters = [step for run in record.profiles for step in run.filters]
        cut += any(run.candidates_more for run in record.profiles) or any(
            step.kept_more or step.dropped_more for step in filters
        )
        if taken.endpoint != otherwise.endpoint:
            differing += 1
            moves[_place(fleet, taken), _place(fleet, otherwise)] += 1
        if picked in fleet.slots:
            last_picked[fleet.slots[picked]] = number
    same = same_plugins(against, config)
    return Comparison(
        decisions=len(records),
        replayed=len(usable),
        skipped=skipped,
        reproduced=reproduced,
        differing=differing,
        cut=cut,
        config=sums[0].side(),
        against=sums[1].side(),
        moves=[Shift(before=a, after=b, count=count) for (a, b), count in moves.most_common(_MOST_MOVES)],
        recalled=[name for name in members(against) if name in same],
        asked_anew=called_again(against, config),
    )


def _usable(records: Iterable[DecisionRecord]) -> tuple[list[DecisionRecord], Mapping[str, int]]:
    """Return the records that can be replayed, oldest first, and the number of the others by reason."""
    usable, skipped = [], Counter[str]()
    for record in records:
        if record.kind == "simulated":
            skipped["simulated, not from a client"] += 1
        elif not any(run.candidates or run.filters for run in record.profiles):
            skipped["refused before any endpoint was considered"] += 1
        else:
            usable.append(record)
    return sorted(usable, key=lambda record: record.at), dict(skipped.most_common())


def _place(fleet: Fleet, taken: Taken) -> str:
    if not taken.endpoint:
        return f"refused: {taken.error}"
    return accelerator_of(fleet.tags[taken.slot]) or _NO_CLASS


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), _DIGITS) if values else None
