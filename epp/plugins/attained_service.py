# SPDX-License-Identifier: Apache-2.0
"""Fairness policy by the recent service or the turns of flows, and the order of flows that it uses."""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import nlargest
from math import log2
from typing import Annotated, Literal
from weakref import WeakSet

import msgspec
import numpy as np
from msgspec import Meta

from epp.framework import (
    DataKey,
    Metadata,
    NonNegative,
    Parameters,
    Positive,
    PreRequest,
    Request,
    Response,
    ResponseReporter,
    SchedulingResult,
    Snapshot,
)
from epp.framework.arrays import Floats, highest, lowest
from epp.framework.flow_control import FairnessPolicy, FlowOrder, Queued
from epp.framework.limits import Weight
from epp.framework.messages import printable
from epp.framework.plugin_status import PluginMetric, Sample

_MOST_PROGRAMS = 16_384
_FIRST_CAPACITY = 16


class Program(msgspec.Struct, eq=False):
    """Statistics of the requests of one flow."""

    used_at: float
    """Time of the last use, in seconds on the clock."""
    service: float = 0.0
    """Service in tokens at the last charge."""
    charged_at: float = 0.0
    """Half-lives at the last charge."""
    requests: int = 0
    """Number of routed requests."""
    waited_seconds: float = 0.0
    """Sum of the waits of these requests."""
    turns: int = 0
    """Requests since the session was last inactive."""


class ServiceLedger:
    """Service by flow, for the `most` most recently used flows.

    Service decays with a half-life, or without one by a factor for each dispatched request. An entry is decayed when it
    is read, from the half-lives since its last charge.
    """

    def __init__(self, *, half_life_seconds: float, factor: float, most: int = _MOST_PROGRAMS) -> None:
        self.programs: OrderedDict[str, Program] = OrderedDict()
        """Statistics by flow, in order of last use."""
        self.dispatched = 0
        self._most = most
        self._half_lives_per_second = 1.0 / half_life_seconds if half_life_seconds else 0.0
        self._half_lives_per_dispatch = 0.0 if half_life_seconds else -log2(factor)

    def half_lives(self, now: float) -> float:
        """Return the half-lives from a fixed time in the past until now."""
        return now * self._half_lives_per_second + self.dispatched * self._half_lives_per_dispatch

    def use(self, flow: str, now: float) -> Program:
        """Return the statistics of a flow, and mark it as used."""
        program = self.programs.get(flow)
        if program is None:
            program = self.programs[flow] = Program(now)
            if len(self.programs) > self._most:
                self.programs.popitem(last=False)
        else:
            self.programs.move_to_end(flow)
            program.used_at = now
        return program

    def charge(self, flow: str, tokens: float, now: float, *, instead_of: tuple[int, float] = (0, 0.0)) -> float:
        """Add service to a flow; return the half-lives at this time.

        `instead_of` is an earlier charge that this one replaces: its tokens, and the half-lives that it returned.
        """
        program, half_lives = self.use(flow, now), self.half_lives(now)
        earlier_tokens, earlier_half_lives = instead_of
        replaced = _decayed(earlier_tokens, half_lives - earlier_half_lives)
        program.service = max(0.0, self.tokens(program, now) + tokens - replaced)
        program.charged_at = half_lives
        return half_lives

    def tokens(self, program: Program, now: float) -> float:
        """Return the decayed service in tokens."""
        return _decayed(program.service, self.half_lives(now) - program.charged_at)

    def forget(self, before: float) -> None:
        """Forget flows that were last used before this time."""
        while self.programs and next(iter(self.programs.values())).used_at < before:
            self.programs.popitem(last=False)


class ProgramOrder(FlowOrder):
    """Order of waiting flows by the scores of the policy, lowest first, and by arrival of the first request if equal.

    Time changes the scores, but not their order. The order changes only when a first request, or what the policy knows
    about a flow, changes.
    """

    def __init__(self, policy: "ProgramAwareFairness") -> None:
        self._policy = policy
        self._flows: list[str] = []
        self._places: dict[str, int] = {}
        self._columns = np.zeros((4, _FIRST_CAPACITY))
        """Arrival and number of the first request of each flow, and the two numbers that the policy has for it."""
        self._first: str | None = None
        """The next flow; None if it must be found again."""

    def head(self, flow: str, key: float, queued: Queued) -> None:
        place = self._places.get(flow)
        if place is None:
            place = self._places[flow] = len(self._flows)
            self._flows.append(flow)
            if place == self._columns.shape[1]:
                self._columns = np.pad(self._columns, ((0, 0), (0, place)))
        self._columns[0, place] = queued.enqueued_at
        self._columns[1, place] = queued.number
        self.changed(flow)

    def empty(self, flow: str) -> None:
        place = self._places.pop(flow, None)
        if place is None:
            return
        last = self._flows.pop()
        if last != flow:  # the last flow moves to the free place
            self._flows[place], self._places[last] = last, place
            self._columns[:, place] = self._columns[:, len(self._flows)]
        self._first = None

    def first(self) -> str:
        if self._first is None:
            arrived, number, one, other = self._columns[:, : len(self._flows)]
            scores = self._policy.scores(arrived, one, other)
            best = (scores <= lowest(scores)).nonzero()[0]
            place = best[number[best].argmin()] if len(best) > 1 else best[0]
            self._first = self._flows[place]
        return self._first

    def dispatched(self, flow: str) -> None:
        self._policy.dispatched()

    def changed(self, flow: str) -> None:
        """Ask the policy for the numbers of a flow again, if it is queued."""
        place = self._places.get(flow)
        if place is not None:
            numbers = self._policy.numbers(flow, self._columns.item(0, place))
            self._columns[2, place], self._columns[3, place] = numbers
            self._first = None


def _decayed(value: float, half_lives: float) -> float:
    return float(value * 2.0**-half_lives)


def _scaled(values: Floats, weight: float) -> Floats:
    """Return values as shares of their range, times the weight; 0 if all are equal."""
    least = lowest(values)
    shares: Floats = values - least
    span = highest(shares)
    if span > 0:
        shares /= span
        shares *= weight
    return shares


_MOST_SHOWN = 100
_MOST_LABEL = 128
_SHORTEST_HALF_LIFE = 1e-3
_OUTPUT_WEIGHT = 2

_FAIRNESS = PluginMetric(
    "program_aware_jains_fairness_index",
    "Jain's index of the mean waits of the remembered programs: 1 for equal waits, 1 / programs if only one waits.",
)
_WAIT = PluginMetric(
    "program_aware_avg_wait_time_milliseconds",
    f"Mean time from the end of a request body to its routing, for the {_MOST_SHOWN} programs with the most service.",
    ("program_id",),
)
_SERVICE = PluginMetric(
    "program_aware_attained_service_tokens",
    "Decayed service (prompt tokens plus twice the generated tokens), for the same programs.",
    ("program_id",),
)


class ProgramAwareParameters(Parameters, frozen=True):
    """Weights and decay of the service of programs."""

    strategy: Literal["las", "turn-priority"] = "las"
    """`las` for least attained service; `turn-priority` for the session with the most turns."""
    las_weight_service: Weight = 0.8
    """Weight of the service of a program, as a share of the range over the waiting programs."""
    las_weight_head_wait: Weight = 0.2
    """Weight of the wait of its first request, as a share of the range."""
    las_half_life_seconds: NonNegative = 60.0
    """Half-life of service; 0 to use `lasDecayFactor`."""
    las_decay_factor: Annotated[float, Meta(gt=0, le=1)] = 0.99997
    """Factor applied to service at each dispatched request, if `lasHalfLifeSeconds` is 0."""
    turn_priority_time_weight: Weight = 0.05
    """Number of turns that one second of wait counts for; only for `turn-priority`."""
    turn_priority_inactivity_seconds: NonNegative = 120.0
    """Time without activity after which a session restarts at turn 1; 0 for never. Requests and ends of responses are
    activity. Only for `turn-priority`."""
    eviction_ttl_seconds: NonNegative = 3600.0
    """Time after which a program without requests is forgotten."""
    eviction_sweep_seconds: Positive = 300.0
    """Interval between searches for such programs."""

    def __post_init__(self) -> None:
        if 0 < self.las_half_life_seconds < _SHORTEST_HALF_LIFE:
            raise ValueError("lasHalfLifeSeconds must be 0, or at least 0.001")


class ProgramAwareFairness(
    FairnessPolicy[ProgramAwareParameters], PreRequest[ProgramAwareParameters], ResponseReporter[ProgramAwareParameters]
):
    """Dispatches the flow with the least service: prompt tokens plus twice the generated tokens, decaying over time.

    The estimated tokens of a prompt count when its request is routed, so that a flow with many running requests does
    not appear idle; the tokens that the endpoint reports replace them at the end. Among flows with equal service, the
    one whose first request has waited longest goes first. The 16384 most recently used flows are remembered.

    With `turn-priority`, the flow with the largest `turn + turnPriorityTimeWeight * wait_seconds` goes first. `turn` is
    that of its first waiting request: one more than its requests so far. The prefix of a session with many turns is
    probably still in a KV cache. This needs one fairness id for each session.
    """

    plugin_type = "program-aware-fairness"
    namespaces = ()
    metrics = (_FAIRNESS, _WAIT, _SERVICE)

    def setup(self) -> None:
        given = self.parameters
        self._ledger = ServiceLedger(half_life_seconds=given.las_half_life_seconds, factor=given.las_decay_factor)
        self._swept_at = self.clock.now()
        self._by_turns = given.strategy == "turn-priority"
        self._orders: WeakSet[ProgramOrder] = WeakSet()
        self._charge: DataKey[tuple[int, float]] = DataKey("attained-service", producer=self.name)
        """Tokens charged for a request, and the half-lives at that time."""

    def order(self) -> FlowOrder:
        order = ProgramOrder(self)
        self._orders.add(order)
        return order

    def dispatched(self) -> None:
        self._ledger.dispatched += 1

    def numbers(self, flow: str, arrived_at: float) -> tuple[float, float]:
        """Return what `scores` needs of a flow whose first request arrived at this time.

        It is the service in tokens and the half-lives at the last charge; with `turn-priority`, the turn and 0.
        """
        if self._by_turns:
            return self._turn(flow, arrived_at), 0.0
        program = self._ledger.programs.get(flow)
        return (0.0, 0.0) if program is None else (program.service, program.charged_at)

    def scores(self, arrived: Floats, one: Floats, other: Floats) -> Floats:
        """Return the scores of flows, by the arrivals of their first requests and the two `numbers` of each flow."""
        given = self.parameters
        if self._by_turns:
            return given.turn_priority_time_weight * arrived - one  # all waits grow at the same rate
        service = one * np.exp2(other - self._ledger.half_lives(self.clock.now()))
        scores = _scaled(service, given.las_weight_service)
        scores += _scaled(arrived, given.las_weight_head_wait)
        return scores

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        now = self.clock.now()
        if now - self._swept_at >= self.parameters.eviction_sweep_seconds:
            self._swept_at = now
            self._ledger.forget(now - self.parameters.eviction_ttl_seconds)
        tokens = max(1, request.prompt_tokens)
        turn = self._turn(request.fairness_id, request.received_at)
        half_lives = self._ledger.charge(request.fairness_id, tokens, now)
        request.put(self._charge, (tokens, half_lives))
        program = self._ledger.use(request.fairness_id, now)
        program.requests += 1
        program.turns = turn
        self._changed(request.fairness_id)
        program.waited_seconds += max(0.0, now - request.received_at)

    def report(self, request: Request, response: Response) -> Metadata:
        usage, charge = response.usage, request.get(self._charge)
        if usage is not None and charge is not None:
            tokens = usage.prompt_tokens + _OUTPUT_WEIGHT * usage.completion_tokens
            self._ledger.charge(request.fairness_id, tokens, self.clock.now(), instead_of=charge)
        elif request.fairness_id in self._ledger.programs:
            self._ledger.use(request.fairness_id, self.clock.now())
        self._changed(request.fairness_id)
        return {}

    def _turn(self, flow: str, arrived_at: float) -> int:
        program = self._ledger.programs.get(flow)
        most = self.parameters.turn_priority_inactivity_seconds
        if program is None or 0 < most < arrived_at - program.used_at:
            return 1
        return program.turns + 1

    def _changed(self, flow: str) -> None:
        """Tell the orders that the service or the turns of a flow have changed."""
        for order in self._orders:
            order.changed(flow)

    @property
    def samples(self) -> Sequence[Sample]:
        now = self.clock.now()
        programs = [each for each in list(self._ledger.programs.items()) if each[1].requests]
        waits = [program.waited_seconds / program.requests for _, program in programs]
        squares = sum(wait * wait for wait in waits)
        found = [Sample(_FAIRNESS, sum(waits) ** 2 / (len(waits) * squares) if squares else 1.0)]
        programs.sort(key=lambda each: -self._ledger.tokens(each[1], now))
        for label, program in {printable(flow, _MOST_LABEL): each for flow, each in programs[:_MOST_SHOWN]}.items():
            found.append(Sample(_WAIT, 1e3 * program.waited_seconds / program.requests, (label,)))
            found.append(Sample(_SERVICE, self._ledger.tokens(program, now), (label,)))
        return found

    def dump_state(self, snapshot: Snapshot) -> object | None:
        now, programs = self.clock.now(), self._ledger.programs
        shown = nlargest(_MOST_SHOWN, programs.items(), key=lambda each: self._ledger.tokens(each[1], now))
        return {
            "programs": [
                {
                    "name": printable(flow, _MOST_LABEL),
                    "requests": program.requests,
                    "waitedSeconds": round(program.waited_seconds, 6),
                    "attainedServiceTokens": self._ledger.tokens(program, now),
                }
                for flow, program in shown
            ],
            "totalPrograms": len(programs),
            "maxPrograms": _MOST_SHOWN,
            "truncated": len(programs) > _MOST_SHOWN,
        }
