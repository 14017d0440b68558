# SPDX-License-Identifier: Apache-2.0
"""Recent service of flows, and the order of flows by it."""

from collections import OrderedDict
from math import log2
from weakref import WeakSet

import msgspec
import numpy as np

from epp.framework.arrays import Floats, highest, lowest
from epp.framework.flow_control import FlowOrder, Queued

_MOST_PROGRAMS = 16_384
_LARGEST_EXPONENT = 256
"""Half-lives after which service is rescaled, to stay within the range of a float."""
_FIRST_CAPACITY = 16
_SMALL = 1e-290
"""Range of service, in ledger units, that counts as 0: it is thousands of half-lives old."""


class Program(msgspec.Struct, eq=False):
    """Statistics of the requests of one flow."""

    used_at: float
    """Seconds on the clock."""
    service: float = 0.0
    """In ledger units."""
    requests: int = 0
    """Number of routed requests."""
    waited_seconds: float = 0.0
    """Sum over these requests."""
    turns: int = 0
    """Requests since the session was last inactive."""


class ServiceLedger:
    """Service by flow, for the `most` most recently used flows.

    Instead of decaying all entries, the ledger counts later tokens in larger units: `2 ** half_lives` for each token.
    Entries are rescaled once these numbers become large.
    """

    def __init__(self, *, half_life_seconds: float, factor: float, now: float, most: int = _MOST_PROGRAMS) -> None:
        """Begin; service decays with a half-life, or without one by a factor for each dispatched request."""
        self.programs: OrderedDict[str, Program] = OrderedDict()
        """In order of last use."""
        self.dispatched = 0
        self._most = most
        self._half_lives_per_second = 1.0 / half_life_seconds if half_life_seconds else 0.0
        self._half_lives_per_dispatch = 0.0 if half_life_seconds else -log2(factor)
        self._unit = self._half_lives(now)
        """Half-lives at which one unit equals one token."""
        self._orders: WeakSet[LeastAttained] = WeakSet()

    def order(self, *, service_weight: float, wait_weight: float) -> "LeastAttained":
        """Return an order of flows by their service."""
        order = LeastAttained(self, service_weight, wait_weight)
        self._orders.add(order)
        return order

    def _half_lives(self, now: float) -> float:
        """Return the number of half-lives up to `now`."""
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
        self._set(flow, self.use(flow, now), tokens * self._worth(half_lives))
        return half_lives

    def correct(self, flow: str, tokens: float, now: float, *, instead_of: tuple[int, float]) -> None:
        """Replace an earlier charge: its tokens, and the half-lives at that time."""
        half_lives = self._half_lives(now)
        charge = _decayed(instead_of[0], half_lives - instead_of[1])
        self._set(flow, self.use(flow, now), (tokens - charge) * self._worth(half_lives))

    def service(self, flow: str) -> float:
        """Return the service of a flow in ledger units."""
        program = self.programs.get(flow)
        return 0.0 if program is None else program.service

    def tokens(self, program: Program, now: float) -> float:
        """Return the decayed service in tokens."""
        return _decayed(program.service, self._half_lives(now) - self._unit)

    def forget(self, before: float) -> None:
        """Forget flows that were last used before this time."""
        while self.programs and next(iter(self.programs.values())).used_at < before:
            self.programs.popitem(last=False)

    def _set(self, flow: str, program: Program, added: float) -> None:
        program.service = max(0.0, program.service + added)
        for order in self._orders:
            order.changed(flow, program.service)

    def _worth(self, half_lives: float) -> float:
        """Return the ledger units of one token now."""
        ahead = half_lives - self._unit
        if ahead > _LARGEST_EXPONENT:
            for program in self.programs.values():
                program.service = _decayed(program.service, ahead)
            for order in self._orders:
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
            self._service[place] = self._ledger.service(flow)
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
            score = _shares(self._service[:count], self._service_weight)
            score += _shares(self._arrived[:count], self._wait_weight)
            best = (score <= score[score.argmin()]).nonzero()[0]
            place = best[self._numbers[best].argmin()] if len(best) > 1 else best[0]
            self._first = self._flows[place]
        return self._first

    def dispatched(self, flow: str) -> None:
        self._ledger.dispatched += 1

    def changed(self, flow: str, service: float) -> None:
        """Update the service of a flow, if it waits here."""
        place = self._places.get(flow)
        if place is not None:
            self._service[place] = service
            self._first = None

    def rescale(self, half_lives: float) -> None:
        """Divide all service by `2 ** half_lives`."""
        count = len(self._flows)
        self._service[:count] *= 2.0**-half_lives
        self._first = None


def _decayed(value: float, half_lives: float) -> float:
    """Return the value after this many half-lives."""
    return float(value * 2.0**-half_lives)


def _shares(values: Floats, weight: float) -> Floats:
    """Return values as shares of their range, times the weight; 0 if all are equal."""
    least = lowest(values)
    span = highest(values) - least
    shares: Floats = values - least
    shares *= weight / span if span > _SMALL else 0.0
    return shares
