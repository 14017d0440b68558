# SPDX-License-Identifier: Apache-2.0
"""Requests and tokens in flight at other pickers of the pool, which are added to the columns of this one."""

from collections.abc import Set as AbstractSet

import msgspec
import numpy as np

from epp.framework.arrays import Floats, Positions
from epp.framework.endpoint import Endpoint
from epp.framework.sharing import MOST_PAYLOAD_BYTES, Shareable
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, INHERITED, PEER_REQUESTS, PEER_TOKENS, SERVED, Snapshot
from epp.routing.datastore.slots import Change
from epp.routing.datastore.store import Datastore

_ENTRY_BYTES = 80
"""Largest size of an entry: an IPv6 address with a zone, and numbers."""
_MOST_ENTRIES = MOST_PAYLOAD_BYTES // _ENTRY_BYTES
_RENEWED = _MOST_ENTRIES // 2
"""Endpoints that are sent again in one payload if not all fit into it."""
_MOST_REQUESTS, _MOST_TOKENS = 1_000_000, 10**12
"""Largest numbers that a picker may report for an endpoint."""


class _Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    address: str
    requests: int
    tokens: int
    picks: int = 0
    """Requests sent to it since the picker started."""

    def __post_init__(self) -> None:
        if not (0 <= self.requests <= _MOST_REQUESTS and 0 <= self.tokens <= _MOST_TOKENS):
            raise ValueError(f"{self.requests} requests with {self.tokens} tokens are not possible")


_NONE = _Entry("", 0, 0)


class _Work(msgspec.Struct, frozen=True, array_like=True):
    is_whole: bool
    """Whether endpoints that are not listed have none."""
    entries: list[_Entry]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Work).decode


class SharedWork(Shareable):
    """Sends the picker's own work at endpoints where it changed; absolute numbers make up for lost batches.

    An endpoint counts as picked when another picker sends a request there, since ties go to the least recently picked.
    """

    share_name = "work"

    def __init__(self, store: Datastore, *, sends: bool = True) -> None:
        """Subscribe to the store. A worker process, whose columns come from others, does not send."""
        self._store = store
        self._sends = sends
        self._peers: dict[str, dict[str, _Entry]] = {}
        """Entries by picker and address of the endpoint."""
        self._totals: dict[str, tuple[int, int]] = {}
        """Requests and tokens of all other pickers, by address."""
        self._sent = np.zeros((3, 0))
        """Last sent requests, tokens and picks, by slot."""
        self._endpoints: tuple[Endpoint | None, ...] = ()
        """Endpoint of each slot."""
        self._renews = self._renews_all = True
        self._next = 0
        """Slot at which the next payload begins, so that full payloads rotate over the slots."""
        self._departed: list[str] = []
        """Addresses of endpoints that left while other pickers counted work there."""
        store.subscribe(self._pool_changed)

    def renew(self) -> None:
        """Send all endpoints with work again, or some of them in rotation if not all fit into a payload."""
        self._renews = True

    def connection(self, *, is_lost: bool) -> None:
        """Send all work again after a loss of contact, since other pickers may have dropped it."""
        self._renews_all = self._renews_all or not is_lost

    def changes(self, snapshot: Snapshot) -> bytes | None:
        """Return the changed work of at most 400 endpoints."""
        if not self._sends:
            return None
        self._track_endpoints(snapshot)
        own = _own(snapshot)
        whole = self._renew(own) if self._renews or self._renews_all else False
        left, self._departed = self._departed[:_RENEWED], self._departed[_RENEWED:]
        slots = self._in_turn(np.flatnonzero((own != self._sent).any(axis=0)), _MOST_ENTRIES - len(left))
        if not (whole or left or len(slots)):
            return None
        self._sent[:, slots] = own[:, slots]
        endpoints = self._endpoints
        entries = [(address, 0, 0, 0) for address in left]
        entries += [
            (endpoint.hostport, int(requests), int(tokens), int(picks))
            for slot, requests, tokens, picks in zip(slots.tolist(), *own[:, slots].tolist(), strict=True)
            if (endpoint := endpoints[slot]) is not None
        ]
        return _encode((whole, entries))

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:  # noqa: ARG002  the store is current
        work = _decode(payload)
        theirs = self._peers.setdefault(peer, {})
        if work.is_whole:
            self._end_all(theirs, but={entry.address for entry in work.entries})
        for entry in work.entries:
            slot = self._store.slot_at(entry.address)
            if slot is not None:
                self._put(theirs, entry, slot)
        return len(work.entries)

    def forget(self, peer: str) -> None:
        self._end_all(self._peers.pop(peer, {}))

    def _end_all(self, theirs: dict[str, _Entry], but: AbstractSet[str] = frozenset()) -> None:
        for address, entry in tuple(theirs.items()):
            if (entry.requests or entry.tokens) and address not in but:
                self._put(theirs, _Entry(address, 0, 0, entry.picks), self._store.slot_at(address))

    def _put(self, theirs: dict[str, _Entry], entry: _Entry, slot: int | None) -> None:
        before = theirs.get(entry.address, _NONE)
        theirs[entry.address] = entry
        requests, tokens = self._totals.get(entry.address, (0, 0))
        total = requests + entry.requests - before.requests, tokens + entry.tokens - before.tokens
        self._totals[entry.address] = total
        if slot is None:
            return
        if entry.picks > before.picks:
            self._store.ledger.picked(slot)
        self._store.count_peers(slot, *total)

    def _renew(self, own: Floats) -> bool:
        """Mark endpoints as unsent; return whether the next payload has all endpoints with work."""
        used = np.flatnonzero(own.any(axis=0))
        whole = len(used) <= _MOST_ENTRIES
        if whole:
            self._sent[:2] = 0
        else:
            self._sent[:, used if self._renews_all else self._in_turn(used, _RENEWED)] = np.nan
        self._renews = self._renews_all = False
        return whole

    def _in_turn(self, slots: Positions, most: int) -> Positions:
        """Return at most `most` of these slots; the remaining ones come first the next time."""
        if len(slots) <= most:
            return slots
        chosen = np.roll(slots, -np.searchsorted(slots, self._next))[:most]
        self._next = int(chosen[-1]) + 1
        return chosen

    def _track_endpoints(self, snapshot: Snapshot) -> None:
        """Mark slots with a new endpoint as unsent, and collect the addresses of endpoints that left."""
        endpoints = snapshot.endpoints.values
        if endpoints is self._endpoints:
            return
        if len(endpoints) > self._sent.shape[1]:
            self._sent = np.pad(self._sent, ((0, 0), (0, len(endpoints) - self._sent.shape[1])))
        changed = snapshot.endpoints.changed_since(self._endpoints)
        for slot in changed:
            if slot < len(self._endpoints) and (gone := self._endpoints[slot]) and self._sent[:2, slot].any():
                self._departed.append(gone.hostport)
        self._sent[:, changed] = 0
        self._endpoints = endpoints

    def _pool_changed(self, change: Change) -> None:
        for _, endpoint in change.removed:
            if self._store.find(endpoint.hostport) is None:
                self._totals.pop(endpoint.hostport, None)
                for theirs in self._peers.values():
                    theirs.pop(endpoint.hostport, None)
        for _, endpoint in (*change.removed, *change.added):
            slot = self._store.slot_at(endpoint.hostport)
            if slot is not None:
                self._store.count_peers(slot, *self._totals.get(endpoint.hostport, (0, 0)))


def _own(snapshot: Snapshot) -> Floats:
    """Return this picker's requests and tokens in flight, and the number of requests that it ever sent, by slot."""
    own = np.empty((3, snapshot.capacity))
    requests = np.subtract(snapshot.column(IN_FLIGHT), snapshot.column(INHERITED), out=own[0])
    requests -= snapshot.column(PEER_REQUESTS)
    np.subtract(snapshot.column(IN_FLIGHT_TOKENS), snapshot.column(PEER_TOKENS), out=own[1])
    np.add(requests, snapshot.column(SERVED), out=own[2])
    return own
