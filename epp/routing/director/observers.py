# SPDX-License-Identifier: Apache-2.0
"""Observers of a director, and several of them as one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from epp.admission.flow_control import EvictionObserver, FlowObserver
from epp.admission.quotas import QuotaObserver
from epp.framework.errors import RequestError
from epp.framework.request import Headers, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.routing.director.policies import Rewrite
from epp.routing.director.routing import RoutingObserver
from epp.routing.outliers import OutlierObserver


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not routed: it is refused, or its client has left."""

    error: RequestError
    headers: Headers = field(default_factory=Headers)
    model: str = ""
    """Empty where the body names none, or was not read."""
    seconds: float = 0.0
    """Time from the complete request to this."""
    request: Request | None = None
    """None where it could not be read."""


class DirectorObserver(RoutingObserver, EvictionObserver, FlowObserver, QuotaObserver, OutlierObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        """Record that a rule chose the model to ask for."""

    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        """Record how many endpoints the gateway's subset has, and how many of them screeners left."""

    def held(self, request: Request, plugin: str) -> None:
        """Record that an admitter lets a request wait."""

    def scheduled(self, request: Request, seconds: float, result: SchedulingResult | None) -> None:
        """Record how long a run of the scheduler took; it found no destination where there is no result."""

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Record a routed request."""

    def refused(self, refusal: Refusal) -> None:
        """Record a request that is not routed."""

    def request_processed(self, seconds: float) -> None:
        """Record the time from the first message of a request to the answer that routes or refuses it."""


_EVENTS = [name for name in dir(DirectorObserver) if not name.startswith("_")]


class Observers(DirectorObserver):
    """Tells each of them everything, in order.

    An event that one of them alone records reaches it without a call in between: there are many for each request.
    """

    def __init__(self, *observers: DirectorObserver) -> None:
        for event in _EVENTS:
            ignored = getattr(DirectorObserver, event)
            methods = [getattr(each, event) for each in observers]
            methods = [method for method in methods if getattr(method, "__func__", None) is not ignored]
            if methods:
                setattr(self, event, methods[0] if len(methods) == 1 else _all(methods))


def _all(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*arguments: object) -> None:
        for method in methods:
            method(*arguments)

    return tell
