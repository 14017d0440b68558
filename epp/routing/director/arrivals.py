# SPDX-License-Identifier: Apache-2.0
"""Requests that are not routed yet: waiting for an admitter, or for room at an endpoint."""

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from epp.admission.flow_control import QueuedRequest
from epp.framework.addresses import Subset
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.quotas import Blocked
from epp.framework.request import Request
from epp.framework.roles import Admitter
from epp.routing.director.pipeline import Pipeline
from epp.routing.director.routing import Routing


class Arrival(msgspec.Struct, eq=False):
    """A request that is not routed yet."""

    pipeline: Pipeline
    request: Request
    subset: Subset | None
    admitters: Iterator[Admitter[Any]]
    """Those that have not been asked."""
    admitted: bool = False
    """Whether it got past shedding: a request that waited is not refused for what came meanwhile."""


@dataclass(frozen=True, slots=True)
class QueueDirective:
    """What an admitter wants a request to wait for."""

    admitter: Admitter[Any]
    awaited: Awaitable[None]


class Router(Protocol):
    """Who routes requests that have waited."""

    def candidates(self, arrival: Arrival) -> Candidates:
        """Return the endpoints that the gateway allows for a request, as things are now."""

    def fitting(self, arrival: Arrival) -> Candidates:
        """Return the endpoints that could serve a request if they had room."""

    def blocked(self, arrival: Arrival) -> Blocked | None:
        """Return why a request does not fit into the quota of its tenant, wherever it goes; None where it does."""

    def preempt(self, arrival: Arrival) -> bool:
        """End requests of its tenant and of lower priority so that a request fits; return whether any ends."""

    def go(self, arrival: Arrival, candidates: Candidates, room: Mask) -> Routing | QueueDirective:
        """Route a request to one of the candidates where the mask is true.

        Raises NeedsFullEndpointError or BlockedError.
        """


class NeedsFullEndpointError(Exception):
    """Only endpoints that are full can serve a request."""


class BlockedError(Exception):
    """A request does not fit into the quota of its tenant, wherever it goes."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(str(blocked.breach))
        self.blocked = blocked


class QueuedArrival(QueuedRequest):
    """A request that waits for room, or is asked whether it has to."""

    def __init__(self, arrival: Arrival, router: Router) -> None:
        self.request = arrival.request
        self.is_restricted = arrival.subset is not None
        self.arrival = arrival
        self.outcome: Routing | QueueDirective | Exception | None = None
        """What has become of it; None while it waits, and once the error of one that was refused is raised."""
        self._router = router
        self._settled: asyncio.Future[None] | None = None

    def candidates(self) -> Candidates:
        """Return the endpoints that the gateway allows for it."""
        return self._router.candidates(self.arrival)

    def fitting(self) -> Candidates:
        """Return the endpoints that could serve it if they had room."""
        return self._router.fitting(self.arrival)

    def blocked(self) -> Blocked | None:
        """Return what quota it waits for; None for one that is to be refused instead of waiting, too."""
        blocked = self._router.blocked(self.arrival)
        return blocked if blocked is not None and blocked.waits else None

    def preempt(self) -> bool:
        """End others so that it fits into the quota of its tenant."""
        return self._router.preempt(self.arrival)

    def route(self, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Route it, or settle it with the error of the attempt."""
        try:
            outcome = self._router.go(self.arrival, candidates, room)
        except NeedsFullEndpointError:
            return False
        except BlockedError as error:
            if error.blocked.waits:
                return error.blocked
            self._settle(error.blocked.error())
        except Exception as error:  # noqa: BLE001  raised again where the request is awaited
            self._settle(error)
        else:
            self._settle(outcome)
        return True

    def refuse(self, error: RequestError) -> None:
        """Settle it with the error."""
        self._settle(error)

    async def end(self) -> Routing | QueueDirective:
        """Return what becomes of it; raises the error that ended its waiting."""
        if self.outcome is None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled
        return self.result()

    def result(self) -> Routing | QueueDirective:
        """Return what has become of it, once; raises the error that ended its waiting."""
        outcome = self.outcome
        assert outcome is not None  # noqa: S101  settled
        if not isinstance(outcome, Exception):
            return outcome
        self.outcome = None
        try:
            raise outcome
        finally:
            del outcome  # which has the frames that it passes, and they have this request

    def _settle(self, outcome: Routing | QueueDirective | Exception) -> None:
        self.outcome = outcome
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
