# SPDX-License-Identifier: Apache-2.0
"""Roles of flow control: saturation, usage limits, ordering, fairness, eviction; entries sorted by changeable keys."""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import Any, Generic, NamedTuple

import msgspec
import numpy as np
from typing_extensions import TypeVar

from epp.framework.arrays import Floats, Mask, ResultError, as_floats
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.plugin import P, Plugin, Role
from epp.framework.request import Request

T = TypeVar("T")
K = TypeVar("K", float, tuple[float, ...], default=float)
N = TypeVar("N", int, str, default=int)


class SortedEntries(Generic[T, K, N]):
    """Entries by key, the least first; equal keys are ordered by name, which is unique.

    A change takes the time of a binary search, and of a move of the later entries of a list by one place.
    """

    __slots__ = ("_entries", "_keys")

    def __init__(self) -> None:
        self._entries: list[tuple[K, N, T]] = []
        """Sorted."""
        self._keys: dict[N, K] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: N) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[T]:
        return (each[2] for each in self._entries)

    def push(self, key: K, name: N, entry: T) -> None:
        """Add an entry, or replace the one of this name."""
        self.discard(name)
        self._keys[name] = key
        insort(self._entries, (key, name, entry))

    def discard(self, name: N) -> None:
        """Remove the entry of this name, if it exists."""
        if name in self._keys:
            del self._entries[bisect_left(self._entries, (self._keys.pop(name), name))]

    def first(self) -> tuple[K, T] | None:
        """Return the first entry with its key; None if there are none."""
        if not self._entries:
            return None
        key, _, entry = self._entries[0]
        return key, entry


ROLE_LABEL = "llm-d.ai/role"
ENCODE_ROLES = ("encode", "encode-prefill", "encode-prefill-decode")
PREFILL_ROLES = ("prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")
DECODE_ROLES = ("decode", "prefill-decode", "both", "encode-prefill-decode")


def as_fullness(value: object, count: int) -> Floats:
    """Return an array of a number for each of `count` candidates; raises ResultError."""
    found = as_floats(value, count, "fullness")
    if np.isnan(found).any():
        raise ResultError(
            "returned NaN for an endpoint: a fullness is 0 or more, also of one that has reported nothing"
        )
    return found


def as_number(value: object) -> float:
    """Return a number; raises ResultError for other values, and for NaN, which has no order."""
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise ResultError(f"returned {type(value).__name__} instead of a number")
    number = float(value)
    if isnan(number):
        raise ResultError("returned NaN instead of a number")
    return number


def as_ceilings(value: object, count: int) -> Sequence[float]:
    """Return a number for each of `count` priorities; raises ResultError."""
    found = as_numbers(value)
    if len(found) != count:
        raise ResultError(f"returned {len(found)} ceilings for {count} priorities")
    return found


def as_numbers(value: object) -> tuple[float, ...]:
    """Return several numbers; raises ResultError."""
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str):
        raise ResultError(f"returned {type(value).__name__} instead of numbers")
    return tuple(map(as_number, value))


def as_bool(value: object) -> bool:
    """Return a bool; raises ResultError for other values."""
    if not isinstance(value, (bool, np.bool_)):
        raise ResultError(f"returned {type(value).__name__} instead of true or false")
    return bool(value)


class Queued(msgspec.Struct, frozen=True, eq=False):
    """A request in a queue."""

    request: Request
    number: int
    """Unique sequence number, in the order of arrival."""
    enqueued_at: float
    """Time of arrival, in seconds on the clock."""
    deadline: float
    """Time at which the request expires, in seconds on the clock; infinite for never."""


class SaturationDetector(Plugin[P], role=Role(title="Saturation detectors")):
    """Measures the fullness of endpoints."""

    counts_own_requests: bool = False
    """Whether the end of a request makes room immediately, not only with the next report of its endpoint."""

    @property
    def oldest_metrics_seconds(self) -> float:
        """Maximum age of usable metrics; infinite if the age does not matter or metrics are not used."""
        return inf

    @abstractmethod
    def fullness(self, candidates: Candidates) -> Floats:
        """Return one number for each candidate: its load as a share of its limit; an endpoint is full from 1."""

    def saturation(self, candidates: Candidates) -> float:
        """Return the fullness of all candidates together: the mean, or 1 without candidates."""
        return float(self.fullness(candidates).mean()) if len(candidates) else 1.0

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_fullness(self.fullness(candidates), len(candidates))
        as_number(self.saturation(candidates))


class UsageLimitPolicy(Plugin[P], role=Role(title="Usage limits")):
    """Reserves room for requests of higher priority."""

    reads_saturation: bool = True
    """Whether the ceilings depend on the saturation of the pool."""

    @abstractmethod
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Return for each priority, highest first, the fullness from which an endpoint has no room for it.

        `saturation` is that of the pool, or 0 for a policy that does not read it.
        """

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        for priorities in ([0], [1, 0, -1]):
            as_ceilings(self.ceilings(priorities, 0.0), len(priorities))


class OrderingPolicy(Plugin[P], role=Role(title="Ordering within a flow")):
    """Chooses the next request of a flow."""

    in_order_of_arrival: bool = False
    """Whether all waiting requests of a flow precede a new one."""

    @abstractmethod
    def key(self, queued: Queued) -> float:
        """Return the sort key of a request, the least first; equal keys are in order of arrival.

        Called once for each request, when it is enqueued.
        """

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_number(self.key(_queued(request, 1)))


class FlowOrder(ABC):
    """Order of the flows of one priority that have waiting requests."""

    @abstractmethod
    def head(self, flow: str, key: float, queued: Queued) -> None:
        """Record the first request of a flow, and its key: the flow is new, or its first request has changed."""

    @abstractmethod
    def empty(self, flow: str) -> None:
        """Remove a flow that has become empty."""

    @abstractmethod
    def first(self) -> str:
        """Return the next flow; called only while a flow exists, perhaps several times before a dispatch."""

    @abstractmethod
    def dispatched(self, flow: str) -> None:
        """Record a dispatch from a flow; `head` or `empty` follows."""


class FairnessPolicy(Plugin[P], role=Role(title="Fairness between flows")):
    """Chooses the flow whose request is next."""

    in_order_of_arrival: bool = False
    """Whether requests that wait in other flows precede a new one, if the order within flows agrees."""

    @abstractmethod
    def order(self) -> FlowOrder:
        """Return an empty order for one priority."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        order, flows = self.order(), {"probe-1", "probe-2"}
        if not isinstance(order, FlowOrder):
            raise ResultError(f"returned {type(order).__name__} instead of a FlowOrder")
        for number, flow in enumerate(sorted(flows), 1):
            order.head(flow, 0.0, _queued(request, number))
        while flows:
            flow = order.first()
            if flow not in flows:
                raise ResultError(f"chose flow {flow!r}, which is empty")
            flows.remove(flow)
            order.dispatched(flow)
            order.empty(flow)


class UnderWay(msgspec.Struct, frozen=True, eq=False):
    """A request that an endpoint is processing."""

    request: Request
    dispatched_at: float
    """Time of the dispatch, in seconds on the clock."""


class EvictionFilter(Plugin[P], role=Role(title="Evictable requests")):
    """Chooses the running requests that may be evicted to make room for requests of higher priority."""

    after_first_token: bool = False
    """Whether a request may be evicted after its response has started."""

    @abstractmethod
    def evictable(self, request: Request) -> bool:
        """Return whether a request may be evicted; called once, when it is sent to its endpoint."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_bool(self.evictable(request))


class EvictionOrder(Plugin[P], role=Role(title="Order of eviction")):
    """Chooses the order in which requests are evicted."""

    @abstractmethod
    def key(self, under_way: UnderWay) -> tuple[float, ...]:
        """Return the sort key of a request, the least first; called once, like `evictable`."""

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        as_numbers(self.key(UnderWay(request, 0.0)))


def _queued(request: Request, number: int) -> Queued:
    return Queued(request, number, enqueued_at=0.0, deadline=60.0)


class HeadOrder(FlowOrder):
    """Order of flows by the key of their first request, then by its arrival."""

    def __init__(self) -> None:
        self._heads: SortedEntries[str, tuple[float, ...], str] = SortedEntries()

    def head(self, flow: str, key: float, queued: Queued) -> None:
        self._heads.push((key, queued.number), flow, flow)

    def empty(self, flow: str) -> None:
        self._heads.discard(flow)

    def first(self) -> str:
        found = self._heads.first()
        if found is None:
            raise LookupError("no flow has a waiting request")
        return found[1]

    def dispatched(self, flow: str) -> None:
        """Do nothing, because the order does not depend on dispatches."""


class Saturation(NamedTuple):
    """Fullness of several endpoints together; they are full from 1."""

    effective: float
    """The larger value of both stages; without stages, the saturation of all endpoints."""
    prefill: float | None = None
    """Saturation of the prefill stage; None without endpoints of this stage."""
    decode: float | None = None
    """Saturation of the decode stage, which includes endpoints without a role; None without such endpoints."""


def saturation_of(detector: SaturationDetector[Any], candidates: Candidates) -> Saturation:
    """Return the saturation of the candidates by stage; an endpoint of both stages counts for each."""
    endpoints = candidates.snapshot.endpoints
    if not endpoints.derive(_have_roles):
        full = detector.saturation(candidates)
        return Saturation(full, decode=full if len(candidates) else None)
    prefill = _saturation(detector, candidates, candidates.where_label(ROLE_LABEL, PREFILL_ROLES))
    decode = _saturation(detector, candidates, endpoints.derive_mask(_decodes)[candidates.slots])
    stages = [each for each in (prefill, decode) if each is not None]
    return Saturation(max(stages) if stages else detector.saturation(candidates), prefill, decode)


def _saturation(detector: SaturationDetector[Any], candidates: Candidates, stage: Mask) -> float | None:
    return detector.saturation(candidates.keep(stage)) if stage.any() else None


def _have_roles(endpoints: tuple[Endpoint | None, ...]) -> bool:
    return any(each is not None and ROLE_LABEL in each.labels for each in endpoints)


def _decodes(endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.labels.get(ROLE_LABEL, DECODE_ROLES[0]) in DECODE_ROLES
