# SPDX-License-Identifier: Apache-2.0
"""What flow control reports of requests, kept with each of them."""

from epp.admission.flow_control import (
    AT_ONCE,
    QUEUEING_OUTCOME,
    WAITING,
    FlowObserver,
    Outcome,
    QueueingOutcome,
)
from epp.framework.request import Request


class FlowReports(FlowObserver):
    """Writes on each request how long it waited and how that ended, and tells the observer."""

    def __init__(self, observer: FlowObserver) -> None:
        self._observer = observer
        self.cycled = observer.cycled  # type: ignore[method-assign]  # without a call in between
        self.enqueued = observer.enqueued  # type: ignore[method-assign]

    def queued(self, request: Request) -> None:
        """Note it, and pass it on."""
        request.put(QUEUEING_OUTCOME, WAITING)
        self._observer.queued(request)

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Note it, and pass it on."""
        at_once = outcome is Outcome.DISPATCHED and request.get(QUEUEING_OUTCOME) is not WAITING
        request.put(QUEUEING_OUTCOME, AT_ONCE if at_once else QueueingOutcome(outcome, seconds))
        self._observer.left(request, outcome, seconds)
