# SPDX-License-Identifier: Apache-2.0
"""All requests that wait: a band for each priority, and limits for all together."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from epp.flow_control.band import Band, Waiting
from epp.flow_control.settings import BandSettings, Limits

SettingsOf: TypeAlias = Callable[[int], BandSettings]
"""Settings of the band of a priority."""


class Queues:
    """Bands by priority, made as requests come and dropped when none waits there."""

    __slots__ = ("_bands", "_settings_of", "limits", "priorities", "requests", "size_bytes")

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

    @property
    def bands(self) -> Mapping[int, Band]:
        """The bands in which requests wait."""
        return self._bands

    def __iter__(self) -> Iterator[Waiting]:
        """Yield all that wait, highest priority first, each priority in its order of arrival."""
        for priority in self.priorities:
            yield from reversed(list(self._bands[priority].newest()))

    def settings(self, priority: int) -> BandSettings:
        """Return what holds at a priority."""
        band = self._bands.get(priority)
        return self._settings_of(priority) if band is None else band.settings

    def at_least(self, priority: int) -> int:
        """Return how many requests of this priority or a higher one wait."""
        return sum(len(band) for each, band in self._bands.items() if each >= priority)

    def in_turn(self, priority: int, flow: str) -> int | None:
        """Return how many requests of a flow are in its queue at a priority; None where flows have no turns there."""
        band = self._bands.get(priority)
        return None if band is None else band.in_turn(flow)

    def ahead_of(self, priority: int, flow: str) -> int:
        """Return how many requests go before one that comes to a flow of a priority, at the least."""
        higher = sum(len(band) for each, band in self._bands.items() if each > priority)
        band = self._bands.get(priority)
        return higher if band is None else higher + band.ahead_of(flow)

    def allows(self, priority: int, size_bytes: int) -> bool:
        """Return whether the limits of a priority allow one more request."""
        band = self._bands.get(priority)
        requests, used = (0, 0) if band is None else (len(band), band.size_bytes)
        return self.settings(priority).limits.allow(requests + 1, used + size_bytes)

    def in_the_way(self, priority: int, size_bytes: int) -> list[Waiting] | None:
        """Return what has to go so that the limits for all allow one more request; None where they do not.

        That is as little as possible of lower priority: of the lowest first, and of that the last to come.
        """
        requests, used = self.requests + 1, self.size_bytes + size_bytes
        victims: list[Waiting] = []
        for each in reversed(self.priorities):
            if self.limits.allow(requests, used) or each >= priority:
                break
            for waiting in self._bands[each].newest():
                victims.append(waiting)
                requests, used = requests - 1, used - waiting.size_bytes
                if self.limits.allow(requests, used):
                    break
        return victims if self.limits.allow(requests, used) else None

    def add(self, waiting: Waiting) -> None:
        """Let a request wait, whatever the limits."""
        band = self._bands.get(waiting.priority)
        if band is None:
            band = self._bands[waiting.priority] = Band(self._settings_of(waiting.priority))
            self.priorities = tuple(sorted(self._bands, reverse=True))
        band.add(waiting)
        self.requests += 1
        self.size_bytes += waiting.size_bytes

    def remove(self, waiting: Waiting, *, in_turn: bool = False) -> None:
        """Take out a request that waits; `in_turn` for the first one of its band, whose flow has had its turn."""
        band = self._bands[waiting.priority]
        band.remove(waiting, in_turn=in_turn)
        self.requests -= 1
        self.size_bytes -= waiting.size_bytes
        if not len(band):
            del self._bands[waiting.priority]
            self.priorities = tuple(sorted(self._bands, reverse=True))
