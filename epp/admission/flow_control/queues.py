# SPDX-License-Identifier: Apache-2.0
"""All requests that wait: a band for each priority, and limits for all together."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from epp.admission.flow_control.band import Band, Waiting
from epp.admission.flow_control.migration import Leftovers, Migration
from epp.admission.flow_control.settings import BandSettings, Limits
from epp.framework.quotas import Blocked

SettingsOf: TypeAlias = Callable[[int], BandSettings]
"""Settings of the band of a priority."""


class Queues:
    """Bands by priority, made as requests come and dropped when none waits there."""

    __slots__ = (
        "_bands",
        "_leftovers",
        "_moves",
        "_resuming",
        "_settings_of",
        "limits",
        "priorities",
        "requests",
        "size_bytes",
    )

    def __init__(self, settings_of: SettingsOf, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        """Requests that wait."""
        self.size_bytes = 0
        """Of their bodies."""
        self.priorities: tuple[int, ...] = ()
        """Priorities at which requests wait, highest first."""
        self._settings_of = settings_of
        self._bands: dict[int, Band] = {}
        self._moves: dict[int, Migration] = {}
        """Of bands that are queued again, by priority."""
        self._leftovers = Leftovers()
        self._resuming: dict[int, int] = {}
        """Number of flows to be resumed, by priority."""

    @property
    def bands(self) -> Mapping[int, Band]:
        """The bands in which requests wait."""
        return self._bands

    def __iter__(self) -> Iterator[Waiting]:
        """Yield all that wait, highest priority first, each priority in its order of arrival."""
        for priority in self.priorities:
            yield from self._bands[priority].oldest_first()

    def settings(self, priority: int) -> BandSettings:
        """Return what holds at a priority."""
        band = self._bands.get(priority)
        return self._settings_of(priority) if band is None or priority in self._moves else band.settings

    @property
    def all_held(self) -> bool:
        """Whether nothing waits but what is held back."""
        return self.requests == sum(band.held_requests for band in self._bands.values())

    def holds(self, flow: str) -> bool:
        """Return whether a flow is held back at any priority."""
        return any(band.holds(flow) for band in self._bands.values())

    def why_held(self, waiting: Waiting) -> Blocked | None:
        """Return what a request is held back for; None for one that is not."""
        return self._bands[waiting.priority].why_held(waiting)

    def resume_due(self, now: float, most: int) -> bool:
        """Resume at most so many flows whose time has come; return whether more may be due, as at midnight."""
        for band in self._bands.values():
            most -= band.resume_due(now, most)
        return not most

    def resume(self, flow: str) -> None:
        """Resume a flow at every priority."""
        for band in self._bands.values():
            band.resume(flow)

    def at_least(self, priority: int) -> int:
        """Return how many requests of this priority or a higher one wait, and are not held back."""
        return sum(len(band) - band.held_requests for each, band in self._bands.items() if each >= priority)

    def in_turn(self, priority: int, flow: str) -> int | None:
        """Return how many requests of a flow are in its queue at a priority; None where flows have no turns there."""
        band = self._bands.get(priority)
        return None if band is None else band.in_turn(flow)

    def ahead_of(self, priority: int, flow: str) -> int:
        """Return how many requests go before one that comes to a flow of a priority, at the least."""
        higher = sum(len(band) - band.held_requests for each, band in self._bands.items() if each > priority)
        band = self._bands.get(priority)
        return higher if band is None else higher + band.ahead_of(flow)

    def giving_way(self, priority: int, flow: str, size_bytes: int) -> list[Waiting] | None:
        """Return what of the same priority has to go so that one more request of a flow may come.

        None where it may not, whatever else goes. What waits at lower priorities counts as gone where the limits for
        all are reached, since it goes first.
        """
        limits = self.settings(priority).limits
        if not limits.allow(1, size_bytes) or not self.limits.allow(1, size_bytes):
            return None
        band = self._bands.get(priority)
        own_requests, own_bytes = (0, 0) if band is None else (len(band), band.size_bytes)
        lower = [each for number, each in self._bands.items() if number < priority]
        all_requests = self.requests - sum(len(each) for each in lower)
        all_bytes = self.size_bytes - sum(each.size_bytes for each in lower)
        place = not limits.allow(own_requests + 1, 0) or not self.limits.allow(all_requests + 1, 0)
        lacking = max(
            own_bytes + size_bytes - limits.size_bytes if limits.size_bytes else 0,
            all_bytes + size_bytes - self.limits.size_bytes if self.limits.size_bytes else 0,
        )
        if band is None:
            return None if place or lacking > 0 else []
        # more than a body has wait after a change to lower limits: then one comes for one that goes
        return band.giving_way(flow, size_bytes, place=place, lacking_bytes=min(lacking, size_bytes))

    def in_the_way(self, priority: int, requests: int, size_bytes: int) -> Waiting | None:
        """Return what has to go next so that the limits for all allow so much more; None for nothing any more.

        It is of a lower priority, the lowest first; in that, of the flow that takes most where flows share, and there
        the last to come.
        """
        requests, used = self.requests + requests, self.size_bytes + size_bytes
        if self.limits.allow(requests, used) or not self.priorities or self.priorities[-1] >= priority:
            return None
        return self._bands[self.priorities[-1]].last(by_bytes=self.limits.allow(requests, 0))

    def use(self, settings_of: SettingsOf, limits: Limits) -> None:
        """Go on under other settings, but for what `settle` does."""
        self._settings_of, self.limits = settings_of, limits
        self._moves.clear()
        self._resuming.clear()
        for priority, band in self._bands.items():
            settings = settings_of(priority)
            if not settings.orders_as(band.settings):
                self._moves[priority] = Migration(band, settings)
                continue
            band.settings = settings
            if band.held_flows:
                self._resuming[priority] = band.held_flows  # quotas may have changed too

    def settle(self, most: int) -> bool:
        """Apply a part of new settings; return whether more is left.

        A band whose order changes is queued again, in its order of arrival. Until that is done, requests go in the
        previous order.
        """
        for priority, move in tuple(self._moves.items()):
            most -= move.some(most)
            if move.is_done:
                self._leftovers.add(self._bands[priority])
                self._bands[priority] = move.finish()
                del self._moves[priority]
        for priority, flows in tuple(self._resuming.items()):
            some = min(most, flows)
            self._bands[priority].resume_some(some)
            most -= some
            self._resuming[priority] -= some
            if some == flows:
                del self._resuming[priority]
        if most:
            self._leftovers.forget_some(most)
        return bool(self._moves or self._resuming or self._leftovers)

    def add(self, waiting: Waiting) -> None:
        """Let a request wait, whatever the limits."""
        band = self._bands.get(waiting.priority)
        if band is None:
            band = self._bands[waiting.priority] = Band(self._settings_of(waiting.priority))
            self.priorities = tuple(sorted(self._bands, reverse=True))
        band.add(waiting)
        if waiting.priority in self._moves:
            self._moves[waiting.priority].came(waiting)
        self.requests += 1
        self.size_bytes += waiting.size_bytes

    def remove(self, waiting: Waiting, *, in_turn: bool = False) -> None:
        """Take out a request that waits; `in_turn` for the first one of its band, whose flow has had its turn."""
        band = self._bands[waiting.priority]
        band.remove(waiting, in_turn=in_turn)
        self.requests -= 1
        self.size_bytes -= waiting.size_bytes
        if waiting.priority in self._moves:
            self._moves[waiting.priority].left(waiting)
        if not len(band):
            del self._bands[waiting.priority]
            self._moves.pop(waiting.priority, None)
            self._resuming.pop(waiting.priority, None)
            self.priorities = tuple(sorted(self._bands, reverse=True))
