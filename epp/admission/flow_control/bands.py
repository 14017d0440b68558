# SPDX-License-Identifier: Apache-2.0
"""All queued requests: a band for each priority, common limits, and migration to another order."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from epp.admission.flow_control.priority_queue import Band
from epp.admission.flow_control.settings import BandSettings, Limits, QueuedRequest

SettingsOf: TypeAlias = Callable[[int], BandSettings]
"""Returns the settings of the band of a priority."""


class _Migration:
    """Moves the requests of a band to a band with another order, in steps; the old band stays in use until then."""

    def __init__(self, source: Band, settings: BandSettings) -> None:
        self._source = source
        self._to = Band(settings)
        self.left = deque(source.arrivals)
        """Numbers of the remaining requests, oldest first; some may have left the source."""

    def step(self, most: int) -> int:
        done = 0
        while done < most and self.left:
            queued = self._source.arrivals.get(self.left.popleft())
            if queued is not None:
                self._to.add(queued)
            done += 1
        return done

    def removed(self, queued: QueuedRequest) -> None:
        if queued.number in self._to.arrivals:
            self._to.remove(queued)

    def finish(self) -> Band:
        """Return the new band, without requests set aside and without throttled flows."""
        self._source.clear_set_aside()
        return self._to


class Bands:
    """Bands by priority; a band exists while it has requests."""

    def __init__(self, settings_of: SettingsOf, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.size_bytes = 0
        self.priorities: tuple[int, ...] = ()
        """Priorities with queued requests, highest first."""
        self._settings_of = settings_of
        self.bands: dict[int, Band] = {}
        self._migrations: dict[int, _Migration] = {}
        self._retired: list[Band] = []
        """Bands that are no longer used; freed in steps, since freeing 100,000 requests takes 30 ms."""
        self._resuming: dict[int, int] = {}
        """Number of flows still to be resumed, by priority."""

    def __iter__(self) -> Iterator[QueuedRequest]:
        """Yield all requests, the highest priority first, each priority in order of arrival."""
        for priority in self.priorities:
            yield from self.bands[priority].arrivals.values()

    def settings(self, priority: int) -> BandSettings:
        band = self.bands.get(priority)
        return self._settings_of(priority) if band is None or priority in self._migrations else band.settings

    def has_turn(self, flow: str) -> bool:
        """Return whether a new request of a flow need not wait, because all queued requests are of throttled flows."""
        bands = self.bands.values()
        return not self.requests or (
            self.requests == sum(band.throttled_requests for band in bands)
            and not any(flow in band.throttled for band in bands)
        )

    def resume_due(self, now: float, most: int) -> bool:
        """Resume at most `most` flows that are due; return whether more may be due, for example at midnight."""
        for band in self.bands.values():
            most -= band.resume_due(now, most)
        return not most

    def resume(self, flow: str) -> None:
        for band in self.bands.values():
            band.resume(flow)

    def at_least(self, priority: int) -> int:
        """Return the number of requests of this or a higher priority, without throttled flows."""
        return sum(len(band) - band.throttled_requests for each, band in self.bands.items() if each >= priority)

    def ahead_of(self, priority: int, flow: str) -> int:
        """Return the smallest number of requests that are dispatched before a new request of a flow."""
        band = self.bands.get(priority)
        return self.at_least(priority + 1) + (0 if band is None else band.ahead_of(flow))

    def victims(self, priority: int, flow: str, size_bytes: int) -> list[QueuedRequest] | None:
        """Return the requests of the same priority to evict for one more request of a flow; None to refuse it.

        If the limits for all priorities are reached, requests of lower priorities are evicted first, by `next_victim`;
        they count as evicted here.
        """
        limits = self.settings(priority).limits
        if not limits.allow(1, size_bytes) or not self.limits.allow(1, size_bytes):
            return None
        band = self.bands.get(priority)
        own_requests, own_bytes = (0, 0) if band is None else (len(band), band.size_bytes)
        lower = [each for number, each in self.bands.items() if number < priority]
        all_requests = self.requests - sum(len(each) for each in lower)
        all_bytes = self.size_bytes - sum(each.size_bytes for each in lower)
        needs_place = not limits.allow(own_requests + 1, 0) or not self.limits.allow(all_requests + 1, 0)
        lacking = max(
            own_bytes + size_bytes - limits.size_bytes if limits.size_bytes else 0,
            all_bytes + size_bytes - self.limits.size_bytes if self.limits.size_bytes else 0,
        )
        if band is None:
            return None if needs_place or lacking > 0 else []
        # After limits were lowered, more bytes than those of this body may be lacking; a request replaces only its own.
        return band.victims(flow, size_bytes, needs_place=needs_place, lacking_bytes=min(lacking, size_bytes))

    def next_victim(self, priority: int, requests: int, size_bytes: int) -> QueuedRequest | None:
        """Return the request to evict next so that the limits for all allow this amount; None if they do.

        It has the lowest priority, below `priority`, and is the newest of the flow with the largest share there.
        """
        requests, used = self.requests + requests, self.size_bytes + size_bytes
        if self.limits.allow(requests, used) or not self.priorities or self.priorities[-1] >= priority:
            return None
        return self.bands[self.priorities[-1]].last(by_bytes=self.limits.allow(requests, 0))

    def use(self, settings_of: SettingsOf, limits: Limits) -> None:
        """Apply other settings; `apply_some` completes the change in steps."""
        self._settings_of, self.limits = settings_of, limits
        self._migrations.clear()
        self._resuming.clear()
        for priority, band in self.bands.items():
            settings = settings_of(priority)
            if settings.ordering != band.settings.ordering or settings.fairness != band.settings.fairness:
                self._migrations[priority] = _Migration(band, settings)
                continue
            band.settings = settings
            if band.throttled:
                self._resuming[priority] = len(band.throttled)  # quotas may have changed too

    def apply_some(self, most: int) -> bool:
        """Apply a part of new settings; return whether more is left.

        The requests of a band whose order changes are queued again, in order of arrival. Until then, requests are
        dispatched in the previous order.
        """
        for priority, migration in tuple(self._migrations.items()):
            most -= migration.step(most)
            if not migration.left:
                self._retired.append(self.bands[priority])
                self.bands[priority] = migration.finish()
                del self._migrations[priority]
        for priority, flows in tuple(self._resuming.items()):
            some = min(most, flows)
            band = self.bands[priority]
            for flow in band.throttled.some(some):
                band.resume(flow)
            most -= some
            self._resuming[priority] -= some
            if some == flows:
                del self._resuming[priority]
        if most and self._retired and not self._retired[-1].free_some(most):
            self._retired.pop()
        return bool(self._migrations or self._resuming or self._retired)

    def add(self, queued: QueuedRequest) -> None:
        priority = queued.priority
        band = self.bands.get(priority)
        if band is None:
            band = self.bands[priority] = Band(self._settings_of(priority))
            self.priorities = tuple(sorted(self.bands, reverse=True))
        band.add(queued)
        if priority in self._migrations:
            self._migrations[priority].left.append(queued.number)
        self.requests += 1
        self.size_bytes += queued.size_bytes

    def remove(self, queued: QueuedRequest, *, dispatched: bool = False) -> None:
        """Remove a request; `dispatched` if it was the first one of its band."""
        priority = queued.priority
        band = self.bands[priority]
        band.remove(queued, dispatched=dispatched)
        self.requests -= 1
        self.size_bytes -= queued.size_bytes
        if priority in self._migrations:
            self._migrations[priority].removed(queued)
        if not len(band):
            del self.bands[priority]
            self._migrations.pop(priority, None)
            self._resuming.pop(priority, None)
            self.priorities = tuple(sorted(self.bands, reverse=True))
