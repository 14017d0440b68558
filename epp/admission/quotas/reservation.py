# SPDX-License-Identifier: Apache-2.0
"""Charges of one request: its share of the hardware and time of endpoints, which is reserved until it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from epp.admission.quotas.usage import NO_USE, Use
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.refusals import Breach
from epp.framework.request import Request, Usage
from epp.framework.snapshot import Snapshot

if TYPE_CHECKING:
    from epp.admission.quotas.quota_ledger import QuotaLedger

_SECONDS_PER_HOUR = 3600.0


def memory_share(tag: AcceleratorTag, requests: int) -> float:
    """Return the share of one of `requests` concurrent requests in an endpoint's memory, in bytes; 0 if unknown."""
    return (tag.total_memory_bytes or 0) / requests


def tflops_share(tag: AcceleratorTag, requests: int) -> float:
    """Return the share of one of `requests` concurrent requests in an endpoint's fp16 TFLOPS; 0 if unknown."""
    tflops = tag.tflops()
    return tflops / requests if isfinite(tflops) and tflops > 0 else 0.0


def devices(tag: AcceleratorTag) -> float:
    """Return the number of accelerator devices or slices; 0 if unknown."""
    return float(max(tag.count, 1)) if tag.has_accelerator else 0.0


def dollars_per_second(tag: AcceleratorTag) -> float:
    """Return the price of the whole endpoint; 0 if unknown."""
    price = tag.cost_per_hour()
    return price / _SECONDS_PER_HOUR if price is not None and isfinite(price) and price > 0 else 0.0


class Share(NamedTuple):
    """Part of the hardware of an endpoint that one request uses."""

    tag: AcceleratorTag
    accelerator_bytes: float = 0.0
    tflops: float = 0.0

    @classmethod
    def of(cls, tag: AcceleratorTag, requests: int) -> "Share":
        return cls(tag, memory_share(tag, requests), tflops_share(tag, requests))


def hardware_of(shares: Sequence[Share]) -> tuple[float, float]:
    """Return the bytes and the TFLOPS of all shares."""
    if len(shares) == 1:
        return shares[0].accelerator_bytes, shares[0].tflops
    return sum(share.accelerator_bytes for share in shares), sum(share.tflops for share in shares)


class SharedTime:
    """A clock of one endpoint that runs at 1/n of real time while the endpoint has n requests.

    The time of a request is the difference between its end and its start on this clock. The times of all requests add
    up to the time in which the endpoint had requests. `clocks`, by endpoint id, has the clock while there are requests.
    """

    __slots__ = ("_at", "_clocks", "_seconds", "endpoint", "requests")

    def __init__(self, endpoint: str, clocks: "dict[str, SharedTime]") -> None:
        clocks[endpoint] = self
        self.endpoint = endpoint
        self.requests = 0
        self._clocks = clocks
        self._seconds = 0.0
        self._at = 0.0

    def seconds(self, now: float) -> float:
        if self.requests:
            self._seconds += (now - self._at) / self.requests
        self._at = now
        return self._seconds

    def enter(self, now: float) -> float:
        seconds = self.seconds(now)
        self.requests += 1
        return seconds

    def leave(self, now: float) -> float:
        seconds = self.seconds(now)
        self.requests -= 1
        if not self.requests:
            del self._clocks[self.endpoint]
        return seconds


class Place:
    """A request at an endpoint: its share of the endpoint's hardware and time."""

    __slots__ = ("_since", "_time", "share")

    def __init__(self, time: SharedTime, share: Share, now: float) -> None:
        self.share = share
        self._time = time
        self._since = time.enter(now)

    @property
    def endpoint(self) -> str:
        return self._time.endpoint

    def spend(self, now: float) -> "Spent":
        """Return the usage since the last call."""
        seconds = self._time.seconds(now)
        since, self._since = self._since, seconds
        return Spent.of(self.share.tag, seconds - since)

    def leave(self, now: float) -> "Spent":
        """Leave the endpoint; return the usage since the last call."""
        return Spent.of(self.share.tag, self._time.leave(now) - self._since)


@dataclass(slots=True)
class Spent:
    seconds: float = 0.0
    device_seconds: float = 0.0
    dollars: float = 0.0

    @classmethod
    def of(cls, tag: AcceleratorTag, seconds: float) -> "Spent":
        seconds = max(0.0, seconds)
        return cls(seconds, seconds * devices(tag), seconds * dollars_per_second(tag))

    def add(self, other: "Spent") -> None:
        self.seconds += other.seconds
        self.device_seconds += other.device_seconds
        self.dollars += other.dollars


@dataclass(slots=True, eq=False, repr=False)
class Reservation:
    """Charges of one request; every method may be called at any time and repeatedly."""

    _ledger: "QuotaLedger"
    request: Request
    places: list[Place]
    """The target, then the other legs; empty after release."""
    tenant: str = field(init=False)
    is_limited: bool = False
    """Whether its tenant has a quota; if not, it only shares the time of endpoints."""
    charged: Use = NO_USE
    """Amounts charged while it is in flight: of the minute, expected tokens; of the day, expected further usage."""
    requests_per_endpoint: int = 0
    """Concurrent requests that share an endpoint's memory and TFLOPS; 0 without a quota."""
    spent: Spent = field(default_factory=Spent)
    is_answered: bool = False
    """Whether the client may have received a part of the response."""
    is_released: bool = False

    def __post_init__(self) -> None:
        self.tenant = self.request.fairness_id

    def __repr__(self) -> str:
        return f"Reservation({self.request.id!r} of {self.tenant!r})"

    @property
    def priority(self) -> int:
        return self.request.priority

    def first_token(self) -> None:
        """Record the first piece of the response, when legs other than the target have ended."""
        if not self.is_released and not self.is_answered:
            self.is_answered = True
            self._ledger.answered(self)

    def move(self, snapshot: Snapshot, slot: int) -> None:
        """Charge another endpoint instead of the target, since the gateway sent the request there."""
        if not self.is_released:
            self._ledger.moved(self, snapshot, slot)

    def release(self, usage: Usage | None = None, *, unserved: bool = False) -> None:
        """Refund the request, and correct its tokens of the minute by the `usage` reported by the model server.

        Without usage, the expected tokens stay charged, since the client may have disconnected early. The tokens of an
        `unserved` request, which no model server has processed, are refunded.
        """
        if not self.is_released:
            self.is_released = True
            self._ledger.released(self, usage, unserved=unserved)


class QuotaObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def charged(self, reservation: Reservation) -> None:
        """Record that a request of a tenant with a quota begins."""

    def released(self, reservation: Reservation) -> None:
        """Record that a request of a tenant with a quota has ended; `reservation.spent` has its usage."""

    def over_quota(self, request: Request, breach: Breach) -> None:
        """Record a request that exceeds a limit of its tenant on its own."""

    def alert(self, tenant: str, key: str, used: float, limit: float, *, is_over: bool) -> None:
        """Record that an alert on a limit starts or ends."""
