# SPDX-License-Identifier: Apache-2.0
"""A request that an admitter holds, or whose body takes long to read."""

from collections.abc import Awaitable, Callable

from epp.director.routing import Routing


class Held:
    """Await `settle`, then take the outcome from `routing`."""

    __slots__ = ("_outcome", "_proceed")

    def __init__(self, proceed: Callable[[], Awaitable[Routing]]) -> None:
        self._proceed = proceed
        self._outcome: Routing | Exception | None = None

    async def settle(self) -> None:
        """Wait until the request is routed, refused or failed; an error is raised by `routing`, not here."""
        try:
            self._outcome = await self._proceed()
        except Exception as error:  # noqa: BLE001  handled where errors of requests that are not held are
            self._outcome = error

    def routing(self) -> Routing:
        """Return the routing; raises the error that refused or failed it, RuntimeError before it is settled."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError("a held request was not awaited")
        return self._outcome
