# SPDX-License-Identifier: Apache-2.0
"""Ends requests under way at an endpoint that one of higher priority needs, as few as possible."""

from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Protocol

from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import EvictedError
from epp.framework.flow_control import EvictionFilter, EvictionOrder, UnderWay
from epp.framework.heap import Heap
from epp.framework.request import Request
from epp.framework.snapshot import IN_FLIGHT

CONFIRMATION_SECONDS = 10.0
"""Time after which revoked requests that have not ended are not waited for any more."""
OWN_GRACE_SECONDS = 0.01
"""Time between the end of revoked requests and the next decision, where their end itself makes room."""
REPORT_GRACE_SECONDS = 0.5
"""The same where endpoints report it."""
MOST_AT_ONCE = 2
"""Requests revoked in one decision."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """Which requests may be ended, in which order, and how soon after others."""

    filter: EvictionFilter[Any]
    order: EvictionOrder[Any]
    grace_seconds: float = REPORT_GRACE_SECONDS


class Evictable(Protocol):
    """A request under way, as its owner shows it."""

    @property
    def request(self) -> Request:
        """The request."""

    @property
    def slot(self) -> int:
        """Slot of the endpoint that works on it; another one where the gateway went elsewhere."""

    @property
    def is_answered(self) -> bool:
        """Whether its client may have got a part of the answer."""

    def evict(self, error: EvictedError, *, even_if_answered: bool) -> bool:
        """Begin to end it with an error; return False where that cannot be done. Its end is told separately."""


class EvictionObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def revoked(self, target: int, issued: int, pending: int, *, priority: int, deficit: float, credit: float) -> None:
        """Record a decision to end `target` requests, of which so many were told to end; `pending` have yet to.

        They make room for a request of `priority` at an endpoint that is fuller than allowed by `deficit`; one takes
        `credit` of it. Both are shares of what makes an endpoint full, and 0 where it is not the fullness that counts.
        """

    def revocation_confirmed(self, seconds: float, pending: int) -> None:
        """Record that a revoked request has ended, after so many seconds; `pending` have yet to."""

    def revocations_given_up(self, count: int) -> None:
        """Record that so many revoked requests did not end in time."""


class _Entry:
    __slots__ = ("evictable", "is_revoked", "key", "number", "priority", "revoked_at", "slot")

    def __init__(self, evictable: Evictable, key: tuple[float, ...], number: int) -> None:
        self.evictable = evictable
        self.key = key
        self.number = number
        self.priority = evictable.request.priority
        self.slot = evictable.slot
        self.revoked_at = 0.0
        self.is_revoked = False


class _Endpoint:
    """What may be ended at one endpoint, by priority."""

    __slots__ = ("bands",)

    def __init__(self) -> None:
        self.bands: dict[int, Heap[_Entry, tuple[float, ...]]] = {}

    def __iter__(self) -> Iterator[_Entry]:
        for band in self.bands.values():
            yield from band

    def add(self, entry: _Entry) -> None:
        band = self.bands.get(entry.priority)
        if band is None:
            band = self.bands[entry.priority] = Heap()
        band.push(entry.key, entry.number, entry)

    def discard(self, entry: _Entry) -> bool:
        """Return whether it was there."""
        band = self.bands.get(entry.priority)
        if band is None or entry.number not in band:
            return False
        band.discard(entry.number)
        if not len(band):
            del self.bands[entry.priority]
        return True


class Evictions:
    """Evictable requests, and requests whose eviction is pending.

    A decision is made only when all that the one before revoked has ended, and a grace has passed in which that shows.
    """

    def __init__(self, clock: Clock, observer: EvictionObserver | None = None) -> None:
        self._clock = clock
        self._observer = observer or EvictionObserver()
        self._settings: EvictionSettings | None = None
        self._entries: dict[Evictable, _Entry] = {}
        self._endpoints: dict[int, _Endpoint] = {}
        self._by_priority: Counter[int] = Counter()
        self._pending: dict[Evictable, _Entry] = {}
        self._decided_at = -inf
        self._ready_at = -inf
        self._numbers = 0

    @property
    def pending(self) -> int:
        """Requests that were told to end and have not."""
        return len(self._pending)

    @property
    def known(self) -> KeysView[Evictable]:
        """Requests under way that may be ended, or were told to."""
        return self._entries.keys()

    @property
    def _spares_answered(self) -> bool:
        return self._settings is None or not self._settings.filter.after_first_token

    def use(self, settings: EvictionSettings | None) -> None:
        """Go by other settings; None for ending nothing. What is under way is judged by those it left under."""
        self._settings = settings

    def started(self, evictable: Evictable) -> bool:
        """Note a request that leaves for its endpoint; return whether its end is to be told."""
        settings = self._settings
        if settings is None or not settings.filter.evictable(evictable.request):
            return False
        under_way = UnderWay(evictable.request, self._clock.now())
        self._numbers += 1
        entry = self._entries[evictable] = _Entry(evictable, settings.order.key(under_way), self._numbers)
        self._add(entry)
        return True

    def ended(self, evictable: Evictable) -> None:
        """Note the end of a request, whatever ended it."""
        entry = self._entries.pop(evictable, None)
        if entry is None:
            return
        if not entry.is_revoked:
            self._discard(entry)
        elif self._pending.pop(evictable, None) is not None:
            now = self._clock.now()
            if not self._pending:
                grace = REPORT_GRACE_SECONDS if self._settings is None else self._settings.grace_seconds
                self._ready_at = now + grace
            self._observer.revocation_confirmed(now - entry.revoked_at, len(self._pending))

    def forget(self, slots: Iterable[int]) -> None:
        """Spare what is under way at endpoints that have left: others may take their slots."""
        for slot in self._endpoints.keys() & slots:
            for entry in list(self._endpoints[slot]):
                self._discard(entry)

    def may_decide(self, priority: int) -> bool:
        """Return whether something of a lower priority may be ended now."""
        if self._settings is None:
            return False
        now = self._clock.now()
        if self._pending:
            if now - self._decided_at < CONFIRMATION_SECONDS:
                return False
            self._observer.revocations_given_up(len(self._pending))
            self._pending.clear()
            self._ready_at = -inf
        if now < self._ready_at:
            return False
        return any(band < priority for band in self._by_priority)

    def put_off(self) -> None:
        """Decide again only after a grace: nothing that could be ended would help."""
        if self._settings is not None:
            self._ready_at = self._clock.now() + self._settings.grace_seconds

    def make_room(
        self, priority: int, candidates: Candidates, fullness: Floats, ceiling: float, retry_after_seconds: int
    ) -> int:
        """End requests of lower priority at one of the candidates; return how many.

        `ceiling` is the fullness from which a candidate has no room; where it is 0, no end of anything makes any.
        """
        if ceiling <= 0:
            return 0
        best: tuple[tuple[float, ...], int] | None = None
        in_flight = candidates.values(IN_FLIGHT)
        for position, slot in enumerate(candidates.slots.tolist()):
            found = self._first_below(priority, slot) if slot in self._endpoints else None
            if found is not None and (best is None or found.key < best[0]):
                best = found.key, position
        if best is None:
            return 0
        position = best[1]
        deficit = float(fullness[position]) - ceiling
        credit = _credit(float(fullness[position]), float(in_flight[position]))
        target = max(1, ceil(deficit / credit - _ROUNDING)) if credit > 0 else 1
        issued = 0
        for entry in self._below(priority, int(candidates.slots[position])):
            if issued == min(target, MOST_AT_ONCE):
                break
            issued += self._revoke(entry, retry_after_seconds)
        if issued:
            self._decided_at = self._clock.now()
            self._observer.revoked(
                target, issued, len(self._pending), priority=priority, deficit=deficit, credit=credit
            )
        return issued

    def endable(self, priority: int) -> Mapping[Request, Evictable]:
        """Return the requests of lower priority that may be ended now; asked for after `may_decide`."""
        spares = self._spares_answered
        return {
            evictable.request: evictable
            for evictable, entry in self._entries.items()
            if entry.priority < priority and not entry.is_revoked and not (spares and evictable.is_answered)
        }

    def end(self, evictables: Sequence[Evictable], retry_after_seconds: int, *, priority: int) -> int:
        """End requests that may be ended, wherever they are, for one of `priority`; return how many are told to."""
        issued = sum(self._revoke(self._entries[each], retry_after_seconds) for each in evictables)
        if issued:
            self._decided_at = self._clock.now()
            self._observer.revoked(
                len(evictables), issued, len(self._pending), priority=priority, deficit=0.0, credit=0.0
            )
        return issued

    def _revoke(self, entry: _Entry, retry_after_seconds: int) -> bool:
        self._discard(entry)
        entry.is_revoked = True
        entry.revoked_at = self._clock.now()
        self._pending[entry.evictable] = entry
        error = EvictedError()
        error.retry_after_seconds = retry_after_seconds
        if entry.evictable.evict(error, even_if_answered=not self._spares_answered):
            return True
        self._pending.pop(entry.evictable, None)
        return False

    def _below(self, priority: int, slot: int) -> Iterator[_Entry]:
        """Yield what may be ended at an endpoint, in order; each is to be revoked before the next."""
        while (entry := self._first_below(priority, slot)) is not None:
            yield entry

    def _first_below(self, priority: int, slot: int) -> _Entry | None:
        """Return what is to be ended first at an endpoint; drop what may not be any more."""
        endpoint = self._endpoints.get(slot)
        best: _Entry | None = None
        for band in [each for each in (endpoint.bands if endpoint is not None else ()) if each < priority]:
            found = self._first(slot, band)
            if found is not None and (best is None or found.key < best.key):
                best = found
        return best

    def _first(self, slot: int, band: int) -> _Entry | None:
        while (endpoint := self._endpoints.get(slot)) is not None and (heap := endpoint.bands.get(band)) is not None:
            found = heap.first()
            if found is None:
                return None
            entry = found[1]
            if entry.evictable.slot != slot:  # the gateway went to another endpoint
                self._discard(entry)
                self._add(entry)
            elif self._spares_answered and entry.evictable.is_answered:
                self._discard(entry)
            else:
                return entry
        return None

    def _add(self, entry: _Entry) -> None:
        entry.slot = entry.evictable.slot
        endpoint = self._endpoints.get(entry.slot)
        if endpoint is None:
            endpoint = self._endpoints[entry.slot] = _Endpoint()
        endpoint.add(entry)
        self._by_priority[entry.priority] += 1

    def _discard(self, entry: _Entry) -> None:
        """Take out what may not be ended any more; nothing where it is out already."""
        endpoint = self._endpoints.get(entry.slot)
        if endpoint is None or not endpoint.discard(entry):
            return
        if not endpoint.bands:
            del self._endpoints[entry.slot]
        self._by_priority[entry.priority] -= 1
        if not self._by_priority[entry.priority]:
            del self._by_priority[entry.priority]


def _credit(fullness: float, in_flight: float) -> float:
    """Return how much of an endpoint one of its requests takes, if all weigh alike."""
    return fullness / in_flight if in_flight > 0 else fullness
