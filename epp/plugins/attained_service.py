# SPDX-License-Identifier: Apache-2.0
"""Fairness policy by the recent service or the turns of flows, and the order of flows that it uses."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
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
from epp.framework.flow_control import FairnessPolicy, FlowOrder, Heap, Queued
from epp.framework.limits import Weight
from epp.framework.messages import printable
from epp.framework.plugin_status import PluginMetric, Sample

_MOST_PROGRAMS = 16_384
_LARGEST_EXPONENT = 256
"""Half-lives after which service is rescaled, to stay within the range of a float."""
_FIRST_CAPACITY = 16
_SMALL = 1e-290
"""Range of service, in ledger units, that counts as 0: it is thousands of half-lives old."""


class Program(msgspec.Struct, eq=False):
    """Statistics of the requests of one flow."""

    used_at: float
    """Time of the last use, in seconds on the clock."""
    service: float = 0.0
    """Service in ledger units."""
    requests: int = 0
    """Number of routed requests."""
    waited_seconds: float = 0.0
    """Sum of the waits of these requests."""
    turns: int = 0
    """Requests since the session was last inactive."""


class ServiceLedger:
    """Service by flow, for the `most` most recently used flows.

    Instead of decaying all entries, the ledger counts later tokens in larger units: `2 ** half_lives` for each token.
    Entries are rescaled once these numbers become large. Service decays with a half-life, or without one by a factor
    for each dispatched request.
    """

    def __init__(self, *, half_life_seconds: float, factor: float, now: float, most: int = _MOST_PROGRAMS) -> None:
        self.programs: OrderedDict[str, Program] = OrderedDict()
        """Statistics by flow, in order of last use."""
        self.dispatched = 0
        self._most = most
        self._half_lives_per_second = 1.0 / half_life_seconds if half_life_seconds else 0.0
        self._half_lives_per_dispatch = 0.0 if half_life_seconds else -log2(factor)
        self._unit = self._half_lives(now)
        """Half-lives at which one unit equals one token."""
        self.orders: WeakSet[LeastAttained] = WeakSet()

    def _half_lives(self, now: float) -> float:
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

    def charge(self, flow: str, tokens: float, now: float) -> float:
        """Add service to a flow; return the half-lives at this time, for `correct()`."""
        half_lives = self._half_lives(now)
        self._set(flow, self.use(flow, now), tokens * self._units_per_token(half_lives))
        return half_lives

    def correct(self, flow: str, tokens: float, now: float, *, instead_of: tuple[int, float]) -> None:
        """Replace an earlier charge: its tokens, and the half-lives at that time."""
        half_lives = self._half_lives(now)
        charge = _decayed(instead_of[0], half_lives - instead_of[1])
        self._set(flow, self.use(flow, now), (tokens - charge) * self._units_per_token(half_lives))

    def tokens(self, program: Program, now: float) -> float:
        """Return the decayed service in tokens."""
        return _decayed(program.service, self._half_lives(now) - self._unit)

    def forget(self, before: float) -> None:
        """Forget flows that were last used before this time."""
        while self.programs and next(iter(self.programs.values())).used_at < before:
            self.programs.popitem(last=False)

    def _set(self, flow: str, program: Program, added: float) -> None:
        program.service = max(0.0, program.service + added)
        for order in self.orders:
            order.changed(flow, program.service)

    def _units_per_token(self, half_lives: float) -> float:
        """Return the ledger units of one token now."""
        ahead = half_lives - self._unit
        if ahead > _LARGEST_EXPONENT:
            for program in self.programs.values():
                program.service = _decayed(program.service, ahead)
            for order in self.orders:
                order.rescale(ahead)
            self._unit, ahead = half_lives, 0.0
        return float(2.0**ahead)


class LeastAttained(FlowOrder):
    """Order by `service_weight * service + wait_weight * arrival`, lowest first.

    Both terms are scaled to 0..1 over the waiting flows. Decay and time shift all flows equally, so the order only
    changes with new service or arrivals.
    """

    def __init__(self, ledger: ServiceLedger, service_weight: float, wait_weight: float) -> None:
        self._ledger = ledger
        self._service_weight = service_weight
        self._wait_weight = wait_weight
        self._flows: list[str] = []
        self._places: dict[str, int] = {}
        self._service = np.zeros(_FIRST_CAPACITY)
        self._arrived = np.zeros(_FIRST_CAPACITY)
        self._numbers = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._first: str | None = None

    def head(self, flow: str, key: float, queued: Queued) -> None:
        place = self._places.get(flow)
        if place is None:
            place = self._places[flow] = len(self._flows)
            self._flows.append(flow)
            if place == len(self._service):
                self._service = np.resize(self._service, 2 * place)
                self._arrived = np.resize(self._arrived, 2 * place)
                self._numbers = np.resize(self._numbers, 2 * place)
            program = self._ledger.programs.get(flow)
            self._service[place] = 0.0 if program is None else program.service
        self._arrived[place] = queued.enqueued_at
        self._numbers[place] = queued.number
        self._first = None

    def empty(self, flow: str) -> None:
        place = self._places.pop(flow, None)
        if place is None:
            return
        last = self._flows.pop()
        if last != flow:  # the last flow moves to the free place
            end = len(self._flows)
            self._flows[place], self._places[last] = last, place
            for column in (self._service, self._arrived, self._numbers):
                column[place] = column[end]
        self._first = None

    def first(self) -> str:
        if self._first is None:
            count = len(self._flows)
            score = _scaled(self._service[:count], self._service_weight)
            score += _scaled(self._arrived[:count], self._wait_weight)
            best = (score <= score[score.argmin()]).nonzero()[0]
            place = best[self._numbers[best].argmin()] if len(best) > 1 else best[0]
            self._first = self._flows[place]
        return self._first

    def dispatched(self, flow: str) -> None:
        self._ledger.dispatched += 1

    def changed(self, flow: str, service: float) -> None:
        """Update the service of a flow, if it is queued."""
        place = self._places.get(flow)
        if place is not None:
            self._service[place] = service
            self._first = None

    def rescale(self, half_lives: float) -> None:
        """Divide all service by `2 ** half_lives`."""
        self._service[: len(self._flows)] *= 2.0**-half_lives
        self._first = None


def _decayed(value: float, half_lives: float) -> float:
    return float(value * 2.0**-half_lives)


def _scaled(values: Floats, weight: float) -> Floats:
    """Return values as shares of their range, times the weight; 0 if all are equal."""
    least = lowest(values)
    span = highest(values) - least
    shares: Floats = values - least
    shares *= weight / span if span > _SMALL else 0.0
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
        now = self.clock.now()
        self._ledger = ServiceLedger(
            half_life_seconds=given.las_half_life_seconds, factor=given.las_decay_factor, now=now
        )
        self._swept_at = now
        self._turn_orders: WeakSet[_TurnPriority] = WeakSet()
        self._charge: DataKey[tuple[int, float]] = DataKey("attained-service", producer=self.name)
        """Tokens charged for a request, and the half-lives at that time."""

    def order(self) -> FlowOrder:
        given = self.parameters
        if given.strategy == "turn-priority":
            by_turns = _TurnPriority(self._turn, given.turn_priority_time_weight)
            self._turn_orders.add(by_turns)
            return by_turns
        order = LeastAttained(self._ledger, given.las_weight_service, given.las_weight_head_wait)
        self._ledger.orders.add(order)
        return order

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
        self._turns_changed(request.fairness_id)
        program.waited_seconds += max(0.0, now - request.received_at)

    def report(self, request: Request, response: Response) -> Metadata:
        usage, charge = response.usage, request.get(self._charge)
        if usage is not None and charge is not None:
            tokens = usage.prompt_tokens + _OUTPUT_WEIGHT * usage.completion_tokens
            self._ledger.correct(request.fairness_id, tokens, self.clock.now(), instead_of=charge)
        elif request.fairness_id in self._ledger.programs:
            self._ledger.use(request.fairness_id, self.clock.now())
        self._turns_changed(request.fairness_id)
        return {}

    def _turn(self, flow: str, arrived_at: float) -> int:
        program = self._ledger.programs.get(flow)
        most = self.parameters.turn_priority_inactivity_seconds
        if program is None or 0 < most < arrived_at - program.used_at:
            return 1
        return program.turns + 1

    def _turns_changed(self, flow: str) -> None:
        for order in self._turn_orders:
            order.changed(flow)

    @property
    def samples(self) -> Sequence[Sample]:
        now = self.clock.now()
        programs = [each for each in list(self._ledger.programs.items()) if each[1].requests]
        waits = [program.waited_seconds / program.requests for _, program in programs]
        squares = sum(wait * wait for wait in waits)
        found = [Sample(_FAIRNESS, sum(waits) ** 2 / (len(waits) * squares) if squares else 1.0)]
        programs.sort(key=lambda each: -each[1].service)
        for label, program in {printable(flow, _MOST_LABEL): each for flow, each in programs[:_MOST_SHOWN]}.items():
            found.append(Sample(_WAIT, 1e3 * program.waited_seconds / program.requests, (label,)))
            found.append(Sample(_SERVICE, self._ledger.tokens(program, now), (label,)))
        return found

    def dump_state(self, snapshot: Snapshot) -> object | None:
        now, programs = self.clock.now(), self._ledger.programs
        shown = nlargest(_MOST_SHOWN, programs.items(), key=lambda each: each[1].service)
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


class _TurnPriority(FlowOrder):
    """Order by `turn + weight * wait_seconds` of the first request, highest first.

    All waits grow at the same rate, so the order changes only with arrivals and turns. The key is
    `weight * arrival - turn`.
    """

    def __init__(self, turn: Callable[[str, float], int], weight: float) -> None:
        """`turn` returns the turn of a request of a flow that arrived at this time: 1 for the first one."""
        self._turn = turn
        self._weight = weight
        self._heads: dict[str, Queued] = {}
        self._flows: Heap[str, tuple[float, ...], str] = Heap()

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._heads[flow] = queued
        self.changed(flow)

    def empty(self, flow: str) -> None:
        self._heads.pop(flow, None)
        self._flows.discard(flow)

    def first(self) -> str:
        first = self._flows.first()
        assert first is not None  # noqa: S101  called only while a flow is queued
        return first[1]

    def dispatched(self, flow: str) -> None:
        """Do nothing: turns are counted as requests are routed, queued or not."""

    def changed(self, flow: str) -> None:
        """Update the turn of a flow, if it is queued."""
        queued = self._heads.get(flow)
        if queued is not None:
            turn = self._turn(flow, queued.enqueued_at)
            key = self._weight * queued.enqueued_at - turn
            self._flows.push((key, queued.number), flow, flow)
