# SPDX-License-Identifier: Apache-2.0
"""Running requests that can be evicted, and endpoints with limited places, for tests of eviction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from epp.admission.flow_control.control import FlowControl
from epp.admission.flow_control.in_flight_eviction import EvictionObserver, Evictions, EvictionSettings
from epp.admission.flow_control.settings import NO_LIMITS, BandSettings, FlowControlSettings
from epp.framework import Candidates, ManualClock, Parameters, Request
from epp.framework.refusals import EvictedError
from epp.framework.testing import candidates
from epp.plugins.flow_policies import (
    FcfsOrdering,
    GlobalStrictFairness,
    PriorityThenTimeEviction,
    SheddableEviction,
    SheddableEvictionParameters,
    StaticUsageLimit,
)
from tests.support.queued_requests import Places, Standing

GRACE = 0.5


class Counted(Places):
    """Places that also count what is in flight."""

    def candidates(self) -> Any:
        return candidates(waiting=[0.0] * len(self.places), in_flight=[float(each) for each in self.taken])


class Working(Standing):
    """A request that may be told to end, and ends when its gateway says so."""

    is_answered = False
    eviction: EvictedError | None = None
    can_be_evicted = True

    def __init__(self, bench: "Bench", request: Request, only: Sequence[int] | None) -> None:
        super().__init__(bench.places, request, only)
        self._bench = bench

    def fits(self, slot: int) -> bool:
        return self.only is None or slot in self.only

    def fitting(self) -> Candidates:
        found = self.candidates()
        return found if self.only is None else found.keep(np.isin(found.slots, self.only))

    def route(self, candidates: Candidates, room: Any) -> bool:
        found = super().route(candidates, room)
        if found:
            self._bench.evictions.started(self)
        return found

    @property
    def slot(self) -> int:
        assert self.place is not None
        return self.place

    def evict(self, error: EvictedError, *, even_if_answered: bool) -> bool:
        assert self.eviction is None, "told twice"
        assert even_if_answered or not self.is_answered
        if self.can_be_evicted:
            self.eviction = error
        return self.can_be_evicted


class Closed(StaticUsageLimit):
    """A policy that leaves no room to anybody."""

    def ceilings(self, priorities, saturation):
        return [0.0] * len(priorities)


class Heard(EvictionObserver):
    def __init__(self) -> None:
        self.decisions: list[tuple[int, int, int]] = []
        self.confirmed: list[float] = []
        self.given_up = 0

    def revoked(self, target, issued, pending, *, priority, deficit, credit):
        self.decisions.append((target, issued, pending))

    def revocation_confirmed(self, seconds, pending):
        self.confirmed.append(seconds)

    def revocations_given_up(self, count):
        self.given_up += count


class Bench:
    """Flow control that may evict, in front of such endpoints."""

    def __init__(self, *places: int, after_first_token: bool = False) -> None:
        self.clock = ManualClock()
        self.clock.advance(1000.0)
        self.places = Counted(*places)
        self.heard = Heard()
        band = BandSettings(NO_LIMITS, 1e9, FcfsOrdering(Parameters()), GlobalStrictFairness(Parameters()))
        eviction = EvictionSettings(
            SheddableEviction(SheddableEvictionParameters(after_first_token=after_first_token)),
            PriorityThenTimeEviction(),
            GRACE,
        )
        self.settings = FlowControlSettings(
            detector=self.places,
            usage_limits=StaticUsageLimit(),
            default_band=band,
            negative_band=band,
            eviction=eviction,
        )
        self.evictions = Evictions(self.clock, self.heard)
        self.flow = FlowControl(self.settings, self.clock, evictions=self.evictions)
        self.inside: list[Working] = []

    def send(self, priority: int, *, only: Sequence[int] | None = None) -> Working:
        request = Request(f"{priority}/{len(self.inside)}", priority=priority)
        working = Working(self, request, only)
        self.inside.append(working)
        found = working.candidates()
        room = self.flow.enter(working, found)
        if room is not None and not working.route(found, room):
            self.flow.wait(working)
        return working

    def end(self, working: Working) -> None:
        """End a request that has a place, whatever ends it."""
        self.places.taken[working.slot] -= 1
        self.inside.remove(working)
        self.evictions.ended(working)
        self.flow.dispatch()

    def use(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)
        self.flow.use(self.settings)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.flow.dispatch()

    def told_to_end(self) -> list[Working]:
        return [each for each in self.inside if each.eviction is not None]
