# SPDX-License-Identifier: Apache-2.0
"""Endpoints that may serve one request, as an index array into the columns of a snapshot; subsets and closeness."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import nan
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from epp.framework.arrays import Floats, Mask, Positions, read_only
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import (
    KV_USAGE,
    METRICS_AT,
    RUNNING,
    TOPOLOGY,
    WAITING,
    Attribute,
    Column,
    Snapshot,
    Topology,
)
from epp.framework.snapshot import T as _T

_D = TypeVar("_D")
_ENGINE_LOAD = (WAITING, RUNNING, KV_USAGE)
"""Columns whose age METRICS_AT gives."""
_NO_VALUE, _NO_LABEL = -1, -2
"""Numbers for a value that no endpoint has, and for a missing label."""
LEVELS = ("host", "rack", "zone", "region", "cluster")
"""Levels of a location, the closest first; also the names of the fields of a `Topology`."""
FAR = len(LEVELS)
"""Closeness of an endpoint that shares no level."""
_UNKNOWN = hash("")


class Candidates:
    """Input of filters and scorers: a filter keeps some candidates, a scorer returns one number for each, in order."""

    __slots__ = ("_load", "_memo", "now", "peer", "profile", "slots", "snapshot")

    def __init__(
        self, snapshot: Snapshot, slots: Positions, *, profile: str = "", peer: int | None = None, now: float = nan
    ) -> None:
        self.snapshot = snapshot
        slots.setflags(write=False)
        self.slots = slots
        self._memo: dict[Callable[[Candidates], object], Any] | None = None
        self.profile = profile
        """Name of the profile that runs; empty outside of profiles."""
        self.peer = peer
        """Slot of the endpoint that the first profile of this request picked; None in the first profile."""
        self.now = now
        """Time of the request on the clock of METRICS_AT; NaN if ages do not count."""
        self._load: Mapping[Column, Floats] | None = None
        """Values that replace those of the snapshot."""

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, position: int) -> Endpoint:
        endpoint = self.snapshot.endpoints.values[self.slots.item(position)]
        if endpoint is None:
            raise LookupError(f"slot {self.slots[position]} holds no endpoint")
        return endpoint

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints, in order. Use columns where possible: a loop over endpoints is slow."""
        return [self[position] for position in range(len(self))]

    def keep(self, mask: Mask) -> "Candidates":
        """Return the members where the mask is true."""
        kept = Candidates(self.snapshot, self.slots[mask], profile=self.profile, peer=self.peer, now=self.now)
        if self._load is not None:
            kept._load = {column: values[mask] for column, values in self._load.items()}
        return kept

    def within(self, profile: str, peer: int | None = None) -> "Candidates":
        """Return the same candidates as a profile sees them."""
        return Candidates(self.snapshot, self.slots, profile=profile, peer=peer, now=self.now)

    def stale(self, after_seconds: float) -> Mask:
        """Mark the members whose last report is older; members that never reported are not stale."""
        mask: Mask = self.now - self.values(METRICS_AT) > after_seconds
        return mask

    def without_stale_load(self, after_seconds: float) -> "Candidates":
        """Return the same candidates, with unknown WAITING, RUNNING and KV_USAGE for the stale ones."""
        stale = self.stale(after_seconds)
        if not stale.any():
            return self
        return self.with_load({column: np.where(stale, nan, self.values(column)) for column in _ENGINE_LOAD})

    def with_load(self, load: Mapping[Column, Floats]) -> "Candidates":
        """Return the same candidates with other values of these columns: one number for each member."""
        found = Candidates(self.snapshot, self.slots, profile=self.profile, peer=self.peer, now=self.now)
        found._load = load if self._load is None else {**self._load, **load}
        return found

    @property
    def hides_load(self) -> bool:
        """Whether some columns differ from those of the snapshot, because reports are old."""
        return self._load is not None

    def values(self, column: Column) -> Floats:
        """Return one number for each member; NaN, or the default of the column, for an unreported one."""
        if self._load is not None and column in self._load:
            return self._load[column]
        return self.snapshot.column(column)[self.slots]

    def records(self, attribute: Attribute[_T]) -> list[_T]:
        """Return one record for each member."""
        values = self.snapshot.records(attribute).values
        return [values[slot] for slot in self.slots.tolist()]

    def derive(self, build: Callable[["Candidates"], _D]) -> _D:
        """Return `build(self)`, which is called once for this object; an array is made read-only."""
        if self._memo is None:
            self._memo = {}
        if build not in self._memo:
            self._memo[build] = read_only(build(self))
        found: _D = self._memo[build]
        return found

    def where_label(self, key: str, values: Sequence[str]) -> Mask:
        """Mark the members whose label `key` has one of the values."""
        return self.snapshot.endpoints.derive_mask(_has_label, key, tuple(values))[self.slots]

    def where_label_is(self, key: str, value: str) -> Mask:
        """Mark the members whose label `key` is this value, which is not empty and may come from a client."""
        numbers, of_slot = self.snapshot.endpoints.derive(_numbered_values, key)
        mask: Mask = of_slot[self.slots] == numbers.get(value, _NO_VALUE)
        return mask


def _has_label(endpoint: Endpoint | None, key: str, values: tuple[str, ...]) -> bool:
    return endpoint is not None and endpoint.labels.get(key) in values


def _numbered_values(endpoints: tuple[Endpoint | None, ...], key: str) -> tuple[Mapping[str, int], NDArray[np.int64]]:
    """Return a number for each value of the label, and the number of each slot."""
    numbers: dict[str, int] = {}
    values = ["" if endpoint is None else endpoint.labels.get(key, "") for endpoint in endpoints]
    of_slot = [numbers.setdefault(value, len(numbers)) if value else _NO_LABEL for value in values]
    return MappingProxyType(numbers), np.array(of_slot, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Subset:
    """Endpoints among which to pick, by address in canonical form."""

    addresses: frozenset[str]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "Subset":
        """Parse addresses, or comma-separated lists of them; malformed addresses match no endpoint."""
        parts = (part.strip() for entry in entries for part in entry.split(","))
        return cls(frozenset(_canonical(part) for part in parts if part))

    def mask(self, snapshot: Snapshot, slots: Positions) -> Mask:
        """Mark the slots whose endpoint is in the subset."""
        by_address = snapshot.endpoints.derive(_slots_by_address)
        allowed = [slot for address in self.addresses for slot in by_address.get(address, ())]
        return np.isin(slots, np.array(allowed, dtype=np.intp))


def _slots_by_address(endpoints: tuple[Endpoint | None, ...]) -> dict[str, list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, endpoint in enumerate(endpoints):
        if endpoint is not None:
            slots.setdefault(endpoint.hostport, []).append(slot)
            slots.setdefault(endpoint.hostport.rpartition(":")[0].strip("[]"), []).append(slot)
    return slots


def _canonical(text: str) -> str:
    """Return the address with IPv6 in its shortest form; a malformed one is unchanged."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        ip = ip_address(host)
    except ValueError:
        return text
    if not port:
        return str(ip)
    return f"[{ip}]:{port}" if isinstance(ip, IPv6Address) else f"{ip}:{port}"


def closeness(candidates: Candidates, slot: int) -> Positions:
    """Return for each candidate the index in LEVELS of the closest level it shares with the slot's endpoint, or FAR.

    A level is shared if both have the same known place. Levels are independent of each other: places need not nest.
    """
    places = candidates.snapshot.records(TOPOLOGY).derive(_places)
    there = places[:, slot, None]
    shared = (places[:, candidates.slots] == there) & (there != _UNKNOWN)
    return np.where(shared.any(axis=0), shared.argmax(axis=0), FAR)


def _places(topologies: tuple[Topology, ...]) -> NDArray[np.int64]:
    """Return a key for each place, with one row for each level and one column for each slot."""
    count = len(topologies)
    return np.array([np.fromiter(map(hash, map(attrgetter(level), topologies)), np.int64, count) for level in LEVELS])
