# SPDX-License-Identifier: Apache-2.0
"""The slots of a pool, and which endpoint is in each."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from epp.framework.endpoint import Endpoint, Identity

_NOBODY = Identity("", "")


@dataclass(frozen=True, slots=True)
class Change:
    """What one change did to the pool."""

    added: tuple[tuple[int, Endpoint], ...]
    removed: tuple[tuple[int, Endpoint], ...]
    updated: tuple[tuple[int, Endpoint], ...] = ()
    """Those that stayed and took other labels."""


class Slots:
    """Slots from 0 on; of the free ones, the lowest is taken first."""

    __slots__ = ("_by_address", "_free", "endpoints", "identities", "slots")

    def __init__(self, capacity: int = 0) -> None:
        self.slots: dict[str, int] = {}
        """By id of the endpoint."""
        self.endpoints: list[Endpoint | None] = [None] * capacity
        self.identities: list[Identity] = [_NOBODY] * capacity
        """By slot, with what was known of an endpoint before it took its last labels."""
        self._by_address: dict[str, list[int]] = {}
        self._free: list[int] = list(range(capacity))

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def grow(self, extra: int) -> None:
        """Add free slots."""
        before = len(self.endpoints)
        self.endpoints.extend([None] * extra)
        self.identities.extend([_NOBODY] * extra)
        self._free.extend(range(before, before + extra))

    def slot_at(self, hostport: str) -> int | None:
        """Return the lowest slot of an endpoint with this address."""
        return min(self._by_address.get(hostport, ()), default=None)

    def is_kept(self, endpoint: Endpoint) -> bool:
        """Return whether it is the same as one that is here, but perhaps for its labels."""
        slot = self.slots.get(endpoint.id)
        return slot is not None and not endpoint.identity.is_another_than(self.identities[slot])

    def put(self, endpoint: Endpoint) -> int:
        """Put an endpoint into a free slot."""
        slot = heapq.heappop(self._free)
        self.put_at(slot, endpoint, endpoint.identity)
        return slot

    def relabel(self, slot: int, endpoint: Endpoint) -> None:
        """Put an endpoint in place of itself with other labels."""
        self.endpoints[slot] = endpoint
        self.identities[slot] = endpoint.identity.after(self.identities[slot])

    def clear(self, slot: int) -> Endpoint:
        """Take the endpoint of a slot in use out of it."""
        endpoint = self.endpoints[slot]
        assert endpoint is not None  # noqa: S101  of a slot in use
        self.endpoints[slot] = None
        self.identities[slot] = _NOBODY
        del self.slots[endpoint.id]
        here = self._by_address[endpoint.hostport]
        here.remove(slot)
        if not here:
            del self._by_address[endpoint.hostport]
        heapq.heappush(self._free, slot)
        return endpoint

    def put_at(self, slot: int, endpoint: Endpoint, identity: Identity) -> None:
        """Put an endpoint into this slot; after one of a choice of the caller's, `count_free` before the next `put`."""
        self.endpoints[slot] = endpoint
        self.identities[slot] = identity
        self.slots[endpoint.id] = slot
        self._by_address.setdefault(endpoint.hostport, []).append(slot)

    def count_free(self) -> None:
        """Find out which slots are free."""
        self._free = [slot for slot, endpoint in enumerate(self.endpoints) if endpoint is None]  # sorted, so a heap


def by_id(endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    """Return the endpoints by id, in order; raises ValueError for two of one id."""
    wanted: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if endpoint.id in wanted:
            raise ValueError(f"two endpoints are named {endpoint.id!r}: names are unique within a namespace")
        wanted[endpoint.id] = endpoint
    return wanted
