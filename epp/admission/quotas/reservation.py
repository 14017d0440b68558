# SPDX-License-Identifier: Apache-2.0
"""What one request has taken of the quota of its tenant, until it is given back once."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from epp.admission.quotas.hardware import Share, devices, dollars_per_second
from epp.admission.quotas.shared_time import SharedTime
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.errors import Breach
from epp.framework.request import Request, Usage
from epp.framework.snapshot import Snapshot


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
