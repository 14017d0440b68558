# SPDX-License-Identifier: Apache-2.0
"""The last request of the demo, and why it went where it went."""

from epp.routing.director import Cause, DirectorObserver, Refusal, Routing


class LastRequest(DirectorObserver):
    """Keeps the last request; its text is made when it is read."""

    def __init__(self) -> None:
        self._last: Routing | Refusal | None = None

    def completed(self, routing: Routing, cause: Cause) -> None:  # noqa: ARG002
        """Keep a request that was routed."""
        self._last = routing

    def refused(self, refusal: Refusal) -> None:
        """Keep a request that was not."""
        self._last = refusal

    @property
    def text(self) -> str:
        """The endpoint and the reason, on one line."""
        last = self._last
        if last is None:
            return "last request: none yet"
        if isinstance(last, Refusal):
            return f"last request: refused with {last.error.status}, {last.error.detail or last.error.message}"
        return f"last request: {last.served.name}, {last.decision.why(last.served)}"
