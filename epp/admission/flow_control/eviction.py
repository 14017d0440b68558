# SPDX-License-Identifier: Apache-2.0
"""Eviction of requests in flight, as few as possible, for a queued request of higher priority."""

from collections import Counter
from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Protocol

from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.flow_control import EvictionFilter, EvictionOrder, Heap, UnderWay
from epp.framework.refusals import EvictedError
from epp.framework.request import Request
from epp.framework.snapshot import IN_FLIGHT

CONFIRMATION_SECONDS = 10.0
"""Longest wait for the end of evicted requests."""
OWN_GRACE_SECONDS = 0.01
"""Time between the end of evicted requests and the next decision, if their end makes room immediately."""
REPORT_GRACE_SECONDS = 0.5
"""Grace period if the freed room is only known after the next report of the endpoint."""
MOST_AT_ONCE = 2
"""Largest number of requests that one decision may evict."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    filter: EvictionFilter[Any]
    order: EvictionOrder[Any]
    grace_seconds: float = REPORT_GRACE_SECONDS


class Evictable(Protocol):
    """A request in flight; implemented by its owner."""

    @property
    def request(self) -> Request:
        """The request."""

    @property
    def slot(self) -> int:
        """Slot of the endpoint that serves it; changes if the gateway uses a fallback."""

    @property
    def is_answered(self) -> bool:
        """Whether the client may have received a part of the response."""

    def evict(self, error: EvictedError, *, even_if_answered: bool) -> bool:
        """Begin to end the request with an error; return False if that is impossible. `ended` reports the end."""


class EvictionObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def revoked(self, target: int, issued: int, pending: int, *, priority: int, deficit: float, credit: float) -> None:
        """Record a decision to evict `target` requests; `issued` are being evicted, and `pending` have not ended.

        They make room for a request of `priority`. The fullness of the endpoint exceeds its ceiling by `deficit`, and
        each request contributes `credit`; both are 0 for evictions that free a quota.
        """

    def revocation_confirmed(self, seconds: float, pending: int) -> None:
        """Record that an evicted request ended after `seconds`; `pending` have not ended."""

    def revocations_given_up(self, count: int) -> None:
        """Record the number of evicted requests that did not end in time."""


@dataclass(slots=True, eq=False)
class _Entry:
    evictable: Evictable
    key: tuple[float, ...]
    number: int
    priority: int
    slot: int = -1
    revoked_at: float = 0.0
    is_revoked: bool = False


class Evictions:
    """Evictable requests, and requests whose eviction is pending.

    A decision is made only after all requests of the last one have ended, and after a grace period in which the freed
    room becomes known.
    """

    def __init__(self, clock: Clock, observer: EvictionObserver | None = None) -> None:
        self._clock = clock
        self._observer = observer or EvictionObserver()
        self.settings: EvictionSettings | None = None
        """None to evict nothing. Requests in flight keep the filter and order with which they started."""
        self._entries: dict[Evictable, _Entry] = {}
        self._endpoints: dict[int, dict[int, Heap[_Entry, tuple[float, ...]]]] = {}
        """Evictable requests by slot, then by priority."""
        self._by_priority: Counter[int] = Counter()
        self._pending: dict[Evictable, _Entry] = {}
        self._decided_at = -inf
        self._ready_at = -inf
        self._numbers = 0

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def known(self) -> KeysView[Evictable]:
        return self._entries.keys()

    @property
    def _spares_answered(self) -> bool:
        return self.settings is None or not self.settings.filter.after_first_token

    def started(self, evictable: Evictable) -> bool:
        """Record a request that is sent to its endpoint; return whether `ended` must be called."""
        settings = self.settings
        if settings is None or not settings.filter.evictable(evictable.request):
            return False
        under_way = UnderWay(evictable.request, self._clock.now())
        self._numbers += 1
        key = settings.order.key(under_way)
        entry = self._entries[evictable] = _Entry(evictable, key, self._numbers, evictable.request.priority)
        self._add(entry)
        return True

    def ended(self, evictable: Evictable) -> None:
        entry = self._entries.pop(evictable, None)
        if entry is None:
            return
        if not entry.is_revoked:
            self._discard(entry)
        elif self._pending.pop(evictable, None) is not None:
            now = self._clock.now()
            if not self._pending:
                grace = REPORT_GRACE_SECONDS if self.settings is None else self.settings.grace_seconds
                self._ready_at = now + grace
            self._observer.revocation_confirmed(now - entry.revoked_at, len(self._pending))

    def forget(self, slots: Iterable[int]) -> None:
        """Drop the requests of endpoints that have left the pool, whose slots may be reused."""
        for slot in self._endpoints.keys() & slots:
            for entry in [entry for band in self._endpoints[slot].values() for entry in band]:
                self._discard(entry)

    def may_decide(self, priority: int) -> bool:
        """Return whether requests below a priority may be evicted now."""
        if self.settings is None:
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

    def postpone(self) -> None:
        """Wait for a grace period before the next decision, since no eviction helps now."""
        if self.settings is not None:
            self._ready_at = self._clock.now() + self.settings.grace_seconds

    def make_room(
        self, priority: int, candidates: Candidates, fullness: Floats, ceiling: float, retry_after_seconds: int
    ) -> int:
        """Evict requests of lower priority at one of the candidates; return their number.

        `ceiling` is the fullness from which a candidate has no room; if it is 0, evictions cannot make room.
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
        slot, full, running = int(candidates.slots[position]), float(fullness[position]), float(in_flight[position])
        deficit = full - ceiling
        credit = full / running if running > 0 else full  # of one request, assuming that all are equal
        target = max(1, ceil(deficit / credit - _ROUNDING)) if credit > 0 else 1
        issued = 0
        while issued < min(target, MOST_AT_ONCE) and (entry := self._first_below(priority, slot)) is not None:
            issued += self._revoke(entry, retry_after_seconds)
        return self._decided(target, issued, priority=priority, deficit=deficit, credit=credit)

    def endable(self, priority: int) -> Mapping[Request, Evictable]:
        """Return the requests below a priority that may be evicted now; call `may_decide` first."""
        spares = self._spares_answered
        return {
            evictable.request: evictable
            for evictable, entry in self._entries.items()
            if entry.priority < priority and not entry.is_revoked and not (spares and evictable.is_answered)
        }

    def end(self, evictables: Sequence[Evictable], retry_after_seconds: int, *, priority: int) -> int:
        """Evict requests at any endpoint for a request of `priority`; return the number that are being evicted."""
        issued = sum(self._revoke(self._entries[each], retry_after_seconds) for each in evictables)
        return self._decided(len(evictables), issued, priority=priority)

    def _decided(self, target: int, issued: int, *, priority: int, deficit: float = 0.0, credit: float = 0.0) -> int:
        """Record a decision, unless it evicts nothing; return the number of requests that are being evicted."""
        if issued:
            self._decided_at, pending = self._clock.now(), len(self._pending)
            self._observer.revoked(target, issued, pending, priority=priority, deficit=deficit, credit=credit)
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

    def _first_below(self, priority: int, slot: int) -> _Entry | None:
        """Return the request to evict first at an endpoint; drop requests that are no longer evictable."""
        best: _Entry | None = None
        for band in [each for each in self._endpoints.get(slot, ()) if each < priority]:
            found = self._first(slot, band)
            if found is not None and (best is None or found.key < best.key):
                best = found
        return best

    def _first(self, slot: int, band: int) -> _Entry | None:
        while (found := self._band(slot, band).first()) is not None:
            entry = found[1]
            if entry.evictable.slot != slot:  # the gateway used a fallback
                self._discard(entry)
                self._add(entry)
            elif self._spares_answered and entry.evictable.is_answered:
                self._discard(entry)
            else:
                return entry
        return None

    def _band(self, slot: int, priority: int) -> Heap[_Entry, tuple[float, ...]]:
        """Return the requests of a priority at an endpoint, in order; empty without any."""
        return self._endpoints.get(slot, {}).get(priority) or Heap()

    def _add(self, entry: _Entry) -> None:
        entry.slot = entry.evictable.slot
        bands = self._endpoints.setdefault(entry.slot, {})
        bands.setdefault(entry.priority, Heap()).push(entry.key, entry.number, entry)
        self._by_priority[entry.priority] += 1

    def _discard(self, entry: _Entry) -> None:
        band = self._band(entry.slot, entry.priority)
        if entry.number not in band:
            return
        band.discard(entry.number)
        if not len(band):
            bands = self._endpoints[entry.slot]
            del bands[entry.priority]
            if not bands:
                del self._endpoints[entry.slot]
        self._by_priority[entry.priority] -= 1
        if not self._by_priority[entry.priority]:
            del self._by_priority[entry.priority]
