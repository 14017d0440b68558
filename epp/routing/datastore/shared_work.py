# SPDX-License-Identifier: Apache-2.0
"""Requests and tokens in flight at other pickers of the pool, added to the columns of this one."""

import msgspec
import numpy as np

from epp.framework.arrays import Floats
from epp.framework.endpoint import Endpoint
from epp.framework.sharing import MOST_PAYLOAD_BYTES, Shareable
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, INHERITED, PEER_REQUESTS, PEER_TOKENS, Snapshot
from epp.routing.datastore.slots import Change
from epp.routing.datastore.store import Datastore

_ENTRY_BYTES = 80
"""Most bytes of an endpoint: an IPv6 address with a zone, and two numbers."""
_MOST_ENTRIES = MOST_PAYLOAD_BYTES // _ENTRY_BYTES
_MOST_REQUESTS, _MOST_TOKENS = 1_000_000, 10**12
"""At one endpoint by one picker."""


class _Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    address: str
    requests: int
    tokens: int

    def __post_init__(self) -> None:
        if not (0 <= self.requests <= _MOST_REQUESTS and 0 <= self.tokens <= _MOST_TOKENS):
            raise ValueError(f"{self.requests} requests with {self.tokens} tokens are not possible")


class _Work(msgspec.Struct, frozen=True, array_like=True):
    is_whole: bool
    """Whether endpoints that are not listed, here or later, have none."""
    entries: list[_Entry]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Work).decode


class SharedWork(Shareable):
    """Tells the own work of each endpoint where it changed, as a whole number: a batch that is lost heals."""

    share_name = "work"

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._peers: dict[str, dict[str, _Entry]] = {}
        """By picker and address, of endpoints of the pool."""
        self._totals: dict[str, tuple[int, int]] = {}
        """Requests and tokens of all other pickers, by address."""
        self._told = np.zeros((2, 0))
        """Requests and tokens by slot, as others know them."""
        self._endpoints: tuple[Endpoint | None, ...] = ()
        """Of these slots."""
        self._is_whole = True
        store.subscribe(self._pool_changed)

    def renew(self) -> None:
        """Tell all endpoints with work."""
        self._is_whole = True

    def changes(self, snapshot: Snapshot) -> bytes | None:
        """Return the work of endpoints where it changed, of at most 400."""
        self._follow(snapshot)
        own = _own(snapshot)
        whole, self._is_whole = self._is_whole, False
        if whole:
            self._told[:] = 0
        slots = np.flatnonzero((own != self._told).any(axis=0))[:_MOST_ENTRIES]
        if not (whole or len(slots)):
            return None
        self._told[:, slots] = own[:, slots]
        endpoints = self._endpoints
        entries = [
            _Entry(endpoint.hostport, int(requests), int(tokens))
            for slot, requests, tokens in zip(slots.tolist(), *own[:, slots].tolist(), strict=True)
            if (endpoint := endpoints[slot]) is not None
        ]
        return _encode(_Work(whole, entries))

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:  # noqa: ARG002  the store has the present
        """Add the work of another picker to the columns."""
        work = _decode(payload)
        theirs = self._peers.setdefault(peer, {})
        if work.is_whole:
            listed = {entry.address for entry in work.entries}
            for address in theirs.keys() - listed:
                self._put(theirs, _Entry(address, 0, 0))
        for entry in work.entries:
            if self._store.find(entry.address) is not None:
                self._put(theirs, entry)
        return len(work.entries)

    def forget(self, peer: str) -> None:
        """Subtract all work of another picker."""
        theirs = self._peers.pop(peer, {})
        for address in tuple(theirs):
            self._put(theirs, _Entry(address, 0, 0))

    def _put(self, theirs: dict[str, _Entry], entry: _Entry) -> None:
        before = theirs.pop(entry.address, None)
        requests, tokens = self._totals.get(entry.address, (0, 0))
        if before is not None:
            requests, tokens = requests - before.requests, tokens - before.tokens
        if entry.requests or entry.tokens:
            theirs[entry.address] = entry
            requests, tokens = requests + entry.requests, tokens + entry.tokens
        if requests or tokens:
            self._totals[entry.address] = requests, tokens
        else:
            self._totals.pop(entry.address, None)
        self._store.count_peers(entry.address, requests, tokens)

    def _follow(self, snapshot: Snapshot) -> None:
        """Count nothing as told of slots that have another endpoint than before."""
        endpoints = snapshot.endpoints.values
        if endpoints is self._endpoints:
            return
        if len(endpoints) > self._told.shape[1]:
            self._told = np.pad(self._told, ((0, 0), (0, len(endpoints) - self._told.shape[1])))
        self._told[:, snapshot.endpoints.changed_since(self._endpoints)] = 0
        self._endpoints = endpoints

    def _pool_changed(self, change: Change) -> None:
        for _, endpoint in change.removed:
            if self._store.find(endpoint.hostport) is None and self._totals.pop(endpoint.hostport, (0, 0)) != (0, 0):
                for theirs in self._peers.values():
                    theirs.pop(endpoint.hostport, None)
        for _, endpoint in (*change.removed, *change.added):
            self._store.count_peers(endpoint.hostport, *self._totals.get(endpoint.hostport, (0, 0)))


def _own(snapshot: Snapshot) -> Floats:
    """Return the requests and tokens by slot that this picker sent."""
    requests = snapshot.column(IN_FLIGHT) - snapshot.column(INHERITED) - snapshot.column(PEER_REQUESTS)
    return np.stack((requests, snapshot.column(IN_FLIGHT_TOKENS) - snapshot.column(PEER_TOKENS)))
