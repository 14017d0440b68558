# SPDX-License-Identifier: Apache-2.0
"""Queued requests and endpoints with limited places, for tests of flow control without a director."""

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from epp.admission.flow_control.control import FlowControl, FlowObserver
from epp.admission.flow_control.settings import (
    NO_LIMITS,
    BandSettings,
    FlowControlSettings,
    Limits,
    Outcome,
    QueuedRequest,
)
from epp.framework import Candidates, ManualClock, Parameters, Request
from epp.framework.errors import RequestError
from epp.framework.flow_control import FairnessPolicy, OrderingPolicy, SaturationDetector
from epp.framework.quotas import Blocked
from epp.framework.refusals import Breach
from epp.framework.testing import candidates
from epp.plugins.flow_policies import FcfsOrdering, GlobalStrictFairness, StaticUsageLimit


class Places(SaturationDetector[Parameters]):
    """Endpoints with so many places each."""

    plugin_type = "places"

    def __init__(self, *places: int) -> None:
        super().__init__()
        self.places = list(places)
        self.taken = [0] * len(places)
        self.shares: dict[str, int] = {}
        """Most places that the requests of a flow may take at once, where that is limited."""
        self.shares_end: float | None = None
        self.users: Counter[str] = Counter()
        """Places taken by flow."""

    def candidates(self) -> Candidates:
        return candidates(waiting=[0.0] * len(self.places))

    def fullness(self, candidates: Candidates) -> Any:
        return np.array(
            [self.taken[slot] / self.places[slot] if self.places[slot] else 1.0 for slot in candidates.slots]
        )


class Heard(FlowObserver):
    """Notes which requests have left their queue, how, and after how many seconds."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, Outcome, float]] = []

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        self.outcomes.append((request.id, outcome, seconds))


class Standing(QueuedRequest):
    """A request that takes a place."""

    def __init__(
        self, places: Places, request: Request, only: Sequence[int] | None = None, *, restricted: bool = False
    ) -> None:
        self.request = request
        self.is_restricted = restricted
        self.place: int | None = None
        self.error: RequestError | None = None
        self._places = places
        self.only = only

    def __repr__(self) -> str:
        return self.request.id

    def candidates(self) -> Candidates:
        found = self._places.candidates()
        if self.is_restricted and self.only is not None:
            found = found.keep(np.isin(found.slots, self.only))
        return found

    def blocked(self) -> Blocked | None:
        flow = self.request.fairness_id
        share = self._places.shares.get(flow)
        if share is None or self._places.users[flow] < share:
            return None
        return Blocked(
            Breach(flow, "total.max.workers.limit", share + 1, share), 7, self._places.shares_end, waits=True
        )

    def route(self, candidates: Candidates, room: Any) -> bool | Blocked:
        blocked = self.blocked()
        if blocked is not None:
            return blocked
        usable = [slot for slot in candidates.slots[room].tolist() if self.only is None or slot in self.only]
        if not usable:
            return False
        assert self.place is None
        assert self.error is None
        self.place = usable[0]
        self._places.taken[self.place] += 1
        self._places.users[self.request.fairness_id] += 1
        return True

    def refuse(self, error: RequestError) -> None:
        assert self.place is None
        assert self.error is None
        self.error = error


class Front:
    """Flow control in front of such endpoints."""

    def __init__(
        self,
        *places: int,
        ordering: OrderingPolicy[Any] | None = None,
        fairness: FairnessPolicy[Any] | None = None,
        band: Limits = NO_LIMITS,
        limits: Limits = NO_LIMITS,
        ttl: float = inf,
        no_endpoint_ttl: float = inf,
        observer: FlowObserver | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.places = Places(*places)
        self.settings = FlowControlSettings(
            detector=self.places,
            usage_limits=StaticUsageLimit(),
            default_band=(
                each := BandSettings(band, ttl, ordering or FcfsOrdering(), fairness or GlobalStrictFairness())
            ),
            negative_band=each,
            limits=limits,
            no_endpoint_ttl_seconds=no_endpoint_ttl,
        )
        self.flow = FlowControl(self.settings, self.clock, observer=observer)
        self._count = 0

    def send(
        self,
        flow: str = "a",
        priority: int = 0,
        *,
        size: int = 1,
        only: Sequence[int] | None = None,
        of: type[Standing] = Standing,
        **more: Any,
    ):
        """Return a request that has come to the front; raises the RequestError that refuses it."""
        self._count += 1
        more.setdefault("received_at", self.clock.now())
        name = more.pop("name", f"{flow}{self._count}")
        request = Request(name, fairness_id=flow, priority=priority, size_bytes=size, **more)
        standing = of(self.places, request, only, restricted=only is not None)
        found = standing.candidates()
        if standing.blocked() is not None:
            self.flow.wait(standing)
            self.flow.dispatch()
            return standing
        room = self.flow.enter(standing, found)
        if room is not None and not standing.route(found, room):
            self.flow.wait(standing)
        return standing

    def assert_order(self, running: Standing, queued: Sequence[Standing]) -> None:
        """Let one request after the other have the only place, and check that they go in this order."""
        for expected in queued:
            self.end(running)
            assert expected.place == 0
            running = expected

    def end(self, standing: Standing) -> None:
        """Free the place of a request."""
        assert standing.place is not None
        self.places.taken[standing.place] -= 1
        self.places.users[standing.request.fairness_id] -= 1
        self.flow.resume(standing.request.fairness_id)
        self.flow.dispatch()


def waiting(*all_of_them: Standing) -> list[Standing]:
    """Return those that neither go nor are refused."""
    return [each for each in all_of_them if each.place is None and each.error is None]
