# SPDX-License-Identifier: Apache-2.0
"""Charges of one request: its share of the hardware and time of endpoints, reserved until it ends."""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple, Protocol

from epp.framework.accelerators.arrays import tag_numbers
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.breach import Breach
from epp.framework.candidates import Candidates
from epp.framework.request import Request
from epp.framework.response import Usage
from epp.framework.snapshot import Snapshot

_SECONDS_PER_HOUR = 3600.0


def memory_share(tag: AcceleratorTag, requests: int) -> float:
    """Return the bytes of one of so many requests that an endpoint serves at once."""
    return (tag.total_memory_bytes or 0) / requests


def tflops_share(tag: AcceleratorTag, requests: int) -> float:
    """Return its fp16 TFLOPS."""
    tflops = tag.tflops()
    return tflops / requests if isfinite(tflops) and tflops > 0 else 0.0


def devices(tag: AcceleratorTag) -> float:
    """Return the number of accelerator devices, or slices."""
    return float(max(tag.count, 1)) if tag.has_accelerator else 0.0


def dollars_per_second(tag: AcceleratorTag) -> float:
    """Return the price of the whole endpoint."""
    price = tag.cost_per_hour()
    return price / _SECONDS_PER_HOUR if price is not None and isfinite(price) and price > 0 else 0.0


class Share(NamedTuple):
    """Part of an endpoint that one request takes."""

    tag: AcceleratorTag
    accelerator_bytes: float = 0.0
    tflops: float = 0.0

    @classmethod
    def of(cls, tag: AcceleratorTag, requests: int) -> "Share":
        """Return that of one of so many requests."""
        return cls(tag, memory_share(tag, requests), tflops_share(tag, requests))


def sum_of_memory(shares: Sequence[Share]) -> float:
    """Return the bytes of all; those of most requests are one."""
    return shares[0].accelerator_bytes if len(shares) == 1 else sum(share.accelerator_bytes for share in shares)


def sum_of_tflops(shares: Sequence[Share]) -> float:
    """Return the TFLOPS of all."""
    return shares[0].tflops if len(shares) == 1 else sum(share.tflops for share in shares)


def memory_shares(candidates: Candidates, requests: int) -> Floats:
    """Return `memory_share` for each candidate."""
    return tag_numbers(candidates, memory_share, requests)


def tflops_shares(candidates: Candidates, requests: int) -> Floats:
    """Return `tflops_share` for each candidate."""
    return tag_numbers(candidates, tflops_share, requests)


def device_counts(candidates: Candidates) -> Floats:
    """Return `devices` for each candidate."""
    return tag_numbers(candidates, devices)


def prices(candidates: Candidates) -> Floats:
    """Return `dollars_per_second` for each candidate."""
    return tag_numbers(candidates, dollars_per_second)


class SharedTime:
    """A clock of one endpoint, which runs for each of n requests at 1/n of the speed of time.

    A request has had the seconds between what it shows at its end and at its start. Those of all requests add up to
    the time in which any was there.
    """

    __slots__ = ("_at", "_owner", "_seconds", "endpoint", "requests")

    def __init__(self, endpoint: str, owner: "SharedTimes") -> None:
        self.endpoint = endpoint
        self.requests = 0
        self._owner = owner
        self._seconds = 0.0
        self._at = 0.0

    def seconds(self, now: float) -> float:
        """Return what the clock shows."""
        if self.requests:
            self._seconds += (now - self._at) / self.requests
        self._at = now
        return self._seconds

    def enter(self, now: float) -> float:
        """Add a request; return what the clock shows at its start."""
        seconds = self.seconds(now)
        self.requests += 1
        return seconds

    def leave(self, now: float) -> float:
        """Take a request out; return what the clock shows at its end."""
        seconds = self.seconds(now)
        self.requests -= 1
        if not self.requests:
            self._owner.drop(self)
        return seconds


class SharedTimes:
    """The clocks of endpoints with requests, by the ids of these."""

    __slots__ = ("_clocks",)

    def __init__(self) -> None:
        self._clocks: dict[str, SharedTime] = {}

    def __len__(self) -> int:
        return len(self._clocks)

    def of(self, endpoint: str) -> SharedTime:
        """Return the clock of an endpoint; it is kept while a request is there."""
        clock = self._clocks.get(endpoint)
        if clock is None:
            clock = self._clocks[endpoint] = SharedTime(endpoint, self)
        return clock

    def drop(self, clock: SharedTime) -> None:
        """Forget a clock."""
        del self._clocks[clock.endpoint]


class Amounts(NamedTuple):
    """What one request takes, or several."""

    requests: int = 0
    tokens: float = 0.0
    """Of prompts, and those that may be generated."""
    accelerator_bytes: float = 0.0
    tflops: float = 0.0

    def plus(self, other: "Amounts") -> "Amounts":
        """Return the sum."""
        return Amounts(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.accelerator_bytes + other.accelerator_bytes,
            self.tflops + other.tflops,
        )


NOTHING = Amounts()


class Need(NamedTuple):
    """What a request would take, or takes."""

    under_way: Amounts
    minute_tokens: float
    """Tokens of its prompt, and those that it is expected to generate."""
    device_seconds: float
    """Expected, as is the price: those of the mean request of its tenant."""
    dollars: float


class Keeper(Protocol):
    """The quotas that a reservation is of."""

    def answered(self, reservation: "Reservation") -> None:
        """Give back what the legs before the answer took."""

    def moved(self, reservation: "Reservation", snapshot: Snapshot, slot: int) -> None:
        """Charge another endpoint."""

    def released(self, reservation: "Reservation", usage: Usage | None, *, unserved: bool) -> None:
        """Give everything back."""


class Place:
    """A request at an endpoint: its share of the endpoint's hardware and time."""

    __slots__ = ("_since", "_time", "endpoint", "share")

    def __init__(self, time: SharedTime, share: Share, now: float, endpoint: str = "") -> None:
        self.share = share
        self.endpoint = endpoint
        """Its id."""
        self._time = time
        self._since = time.enter(now)

    def spend(self, now: float) -> "Spent":
        """Return what it has had since the last time."""
        seconds = self._time.seconds(now)
        since, self._since = self._since, seconds
        return Spent.of(self.share.tag, seconds - since)

    def leave(self, now: float) -> "Spent":
        """Leave the endpoint; return the same."""
        return Spent.of(self.share.tag, self._time.leave(now) - self._since)


class Spent:
    """What a request has had of endpoints."""

    __slots__ = ("device_seconds", "dollars", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.device_seconds = 0.0
        self.dollars = 0.0

    @classmethod
    def of(cls, tag: AcceleratorTag, seconds: float) -> "Spent":
        """Return the worth of so many seconds of an endpoint."""
        spent = cls()
        spent.seconds = max(0.0, seconds)
        spent.device_seconds = spent.seconds * devices(tag)
        spent.dollars = spent.seconds * dollars_per_second(tag)
        return spent

    def add(self, other: "Spent") -> None:
        """Add what it has had elsewhere."""
        self.seconds += other.seconds
        self.device_seconds += other.device_seconds
        self.dollars += other.dollars


class Reservation:
    """Of one request; every verb may be called at any time, any number of times."""

    __slots__ = (
        "_keeper",
        "amounts",
        "assumed_at",
        "expected_device_seconds",
        "expected_dollars",
        "is_answered",
        "is_limited",
        "is_released",
        "minute_tokens",
        "places",
        "request",
        "requests_per_endpoint",
        "spent",
        "tenant",
    )

    def __init__(self, keeper: Keeper, request: Request, places: Sequence[Place], now: float) -> None:
        self.request = request
        self.tenant = request.fairness_id
        self.assumed_at = now
        """Seconds on the clock."""
        self.is_limited = False
        """Whether its tenant had a quota; otherwise it only shares the time of endpoints."""
        self.amounts: Amounts = NOTHING
        """What it takes while it is under way."""
        self.minute_tokens = 0.0
        """Tokens charged to the minute, until usage is known."""
        self.expected_device_seconds = 0.0
        """What it is still expected to take of the day, as is the price."""
        self.expected_dollars = 0.0
        self.requests_per_endpoint = 0
        """Of which it is one, as its share of memory and TFLOPS is reckoned; 0 where it is not limited."""
        self.places = list(places)
        """Its target, then those of its other legs; none once it is released."""
        self.spent = Spent()
        """What it has been charged for so far."""
        self.is_answered = False
        """Whether its client may have got a part of the answer."""
        self.is_released = False
        self._keeper = keeper

    def __repr__(self) -> str:
        return f"Reservation({self.request.id!r} of {self.tenant!r})"

    @property
    def priority(self) -> int:
        """That of its request."""
        return self.request.priority

    def commit(self) -> None:
        """Note response headers: it is charged for as before, until the end."""

    def first_token(self) -> None:
        """Note the first piece of the answer: legs other than the target have ended."""
        if not self.is_released and not self.is_answered:
            self.is_answered = True
            self._keeper.answered(self)

    def move(self, snapshot: Snapshot, slot: int) -> None:
        """Charge another endpoint than the target from now on: the gateway went there."""
        if not self.is_released:
            self._keeper.moved(self, snapshot, slot)

    def release(self, usage: Usage | None = None, *, unserved: bool = False) -> None:
        """Give everything back; tokens of the minute are corrected by what the model server counted.

        Without that they stay as expected, since the client may have left before the end; those of an `unserved`
        request, which no model server has worked on, are given back.
        """
        if not self.is_released:
            self.is_released = True
            self._keeper.released(self, usage, unserved=unserved)


class QuotaObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def charged(self, reservation: Reservation) -> None:
        """Record that a request of a tenant with a quota begins."""

    def released(self, reservation: Reservation) -> None:
        """Record that it has ended; what it has had is in `reservation.spent`."""

    def over_quota(self, request: Request, breach: Breach) -> None:
        """Record a request that is larger than its tenant may send."""

    def alert(self, tenant: str, key: str, used: float, limit: float, *, is_over: bool) -> None:
        """Record that a limit is almost used up, or that this is over."""
