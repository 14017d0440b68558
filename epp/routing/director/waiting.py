# SPDX-License-Identifier: Apache-2.0
"""Requests that are not routed yet: waiting for an admitter, for a quota, or for room at an endpoint."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from epp.admission.flow_control import QueuedRequest
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.quotas import Blocked
from epp.routing.director.incoming_request import IncomingRequest
from epp.routing.director.router import BlockedError, NeedsFullEndpointError, QueueDirective, Router
from epp.routing.director.routing import Cause, Routing


class WaitingRequest(QueuedRequest):
    """A request that waits for room, or whose need to wait is being checked."""

    def __init__(self, incoming: IncomingRequest, router: Router) -> None:
        self.request = incoming.request
        self.is_restricted = incoming.request.subset is not None
        self.incoming = incoming
        self.outcome: Routing | QueueDirective | Exception | None = None
        """Its outcome; None while it waits, and after the error of a refusal was raised."""
        self._router = router
        self._settled: asyncio.Future[None] | None = None

    def candidates(self) -> Candidates:
        """Return the endpoints that the gateway allows for it."""
        return self._router.candidates(self.incoming)

    def fitting(self) -> Candidates:
        """Return the endpoints that could serve it if they had room."""
        return self._router.fitting(self.incoming)

    def blocked(self) -> Blocked | None:
        """Return the quota limit that it waits for; None if there is none, or if it is refused instead of waiting."""
        blocked = self._router.blocked(self.incoming)
        return blocked if blocked is not None and blocked.waits else None

    def preempt(self) -> bool:
        """End other requests so that it fits into the quota of its tenant."""
        return self._router.preempt(self.incoming)

    def route(self, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Route it, or settle it with the error of the attempt."""
        try:
            outcome = self._router.go(self.incoming, candidates, room)
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
        """Wait for the outcome and return it; raises the error that ended its waiting."""
        if self.outcome is None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled
        return self.result()

    def result(self) -> Routing | QueueDirective:
        """Return the outcome, once; raises the error that ended its waiting."""
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


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Await `settle`, then take the outcome from `routing`; or `abandon` it."""

    _proceed: Callable[[], Awaitable[Routing]]
    """Cancelled if the request is abandoned after `settle`."""
    _abandoned: Callable[[], None] = lambda: None
    """Called if the request is abandoned before `settle`."""
    _: KW_ONLY
    longest_seconds: float = 0.0
    """Longest wait for room; infinite for no limit, 0 if it does not wait for room."""
    _has_begun: bool = field(default=False, init=False)
    _outcome: Routing | Exception | None = field(default=None, init=False)

    async def settle(self) -> None:
        """Wait until the request is routed, refused or failed; an error is raised by `routing`, not here."""
        self._has_begun = True
        try:
            self._outcome = await self._proceed()
        except Exception as error:  # noqa: BLE001  handled where errors of requests that are not held are
            self._outcome = error

    def abandon(self) -> None:
        """Abandon the request; a running `settle` ends by cancellation instead."""
        if not self._has_begun:
            self._has_begun = True
            self._abandoned()
        elif isinstance(self._outcome, Routing):  # that was not taken
            self._outcome.complete(Cause.CLIENT_DISCONNECT)

    def routing(self) -> Routing:
        """Return the routing; raises the error that refused or failed it once, RuntimeError before it is settled."""
        outcome = self._outcome
        if outcome is None:
            raise RuntimeError("a held request was not awaited")
        if isinstance(outcome, Routing):
            return outcome
        self._outcome = None
        try:
            raise outcome
        finally:
            del outcome  # which has the frames that it passes, and they have this request
