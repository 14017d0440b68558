# SPDX-License-Identifier: Apache-2.0
"""A request that an admitter or flow control holds, or whose body takes long to read."""

from collections.abc import Awaitable, Callable

from epp.routing.director.routing import Cause, Routing


class PendingRequest:
    """Await `settle`, then take the outcome from `routing`; or `abandon` it."""

    __slots__ = ("_abandoned", "_has_begun", "_outcome", "_proceed", "longest_seconds")

    def __init__(
        self,
        proceed: Callable[[], Awaitable[Routing]],
        abandoned: Callable[[], None] = lambda: None,
        *,
        longest_seconds: float = 0.0,
    ) -> None:
        """`abandoned` is called where the request is given up before anything awaits it; later, `proceed` is ended."""
        self.longest_seconds = longest_seconds
        """How long it may wait for room; infinite for as long as it takes, 0 where only something else holds it."""
        self._proceed = proceed
        self._abandoned = abandoned
        self._has_begun = False
        self._outcome: Routing | Exception | None = None

    async def settle(self) -> None:
        """Wait until the request is routed, refused or failed; an error is raised by `routing`, not here."""
        self._has_begun = True
        try:
            self._outcome = await self._proceed()
        except Exception as error:  # noqa: BLE001  handled where errors of requests that are not held are
            self._outcome = error

    def abandon(self) -> None:
        """Give the request up; where it is awaited now, that ends by cancellation instead."""
        if not self._has_begun:
            self._has_begun = True
            self._abandoned()
        elif isinstance(self._outcome, Routing):  # that nobody has taken
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
