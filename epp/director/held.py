"""A request that an admitter holds."""

from collections.abc import Awaitable, Callable

from epp.director.routing import Routing
from epp.framework.errors import RequestError


class Held:
    """Await `settle`, then take the outcome from `routing`."""

    __slots__ = ("_outcome", "_proceed")

    def __init__(self, proceed: Callable[[], Awaitable[Routing]]) -> None:
        self._proceed = proceed
        self._outcome: Routing | RequestError | None = None

    async def settle(self) -> None:
        """Wait until the request is routed or refused."""
        try:
            self._outcome = await self._proceed()
        except RequestError as error:
            self._outcome = error

    def routing(self) -> Routing:
        """Return the routing; raises the RequestError that refused it, RuntimeError before it is settled."""
        if isinstance(self._outcome, RequestError):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError("a held request was not awaited")
        return self._outcome
