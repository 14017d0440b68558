# SPDX-License-Identifier: Apache-2.0
"""Runs shadow profiles for a sample of the routed requests, once their answers have left.

A request that is sampled costs a few references and a copy of what its producers computed. All else happens later, in a
small share of the event loop's time; what does not fit there is left out and counted.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Protocol

from prometheus_client.registry import CollectorRegistry

from epp.explain.record import ShadowRun
from epp.explain.resident import ResidentMemory
from epp.explain.shadow import Shadow, Tried, seed_of
from epp.explain.shadow_series import ShadowSeries
from epp.framework.request import Request
from epp.framework.result import SchedulingResult
from epp.framework.roles import ShadowLimits
from epp.routing.director import DirectorObserver
from epp.routing.scheduling import Profile

SHARE = 0.05
"""Share of the event loop's time in which shadows run."""
_HEAD_START_SECONDS = 0.001
"""Time in which the answer to a request has left."""
_MOST_BYTES = 32 * 2**20
"""Of the bodies of the requests that wait."""
_SEEDS = 2**64


class ShadowRecorder(Protocol):
    """Records what shadows would have done."""

    def expect_shadows(self, request: Request) -> None:
        """Take note that a request waits for its shadows."""

    def add_shadows(self, request: Request, runs: Sequence[ShadowRun]) -> None:
        """Take the runs of a request that waits for them; none where they are left out."""


class Shadows(DirectorObserver):
    """All shadow profiles of a picker; `run` runs them."""

    def __init__(self, registry: CollectorRegistry, recorder: ShadowRecorder | None = None) -> None:
        """Have none."""
        self._series = ShadowSeries(registry)
        self._recorder = recorder
        self._memory = ResidentMemory()
        self._shadows: tuple[Shadow, ...] = ()
        self._threshold = 0
        self._most = 0
        self._waiting: deque[Tried] = deque()
        self._bytes = 0
        self._wanted = asyncio.Event()

    @property
    def problems(self) -> Sequence[Mapping[str, str]]:
        """The profiles that are disabled, and why; read from any thread."""
        return [{"profile": each.name, "problem": each.problem} for each in self._shadows if each.problem]

    def use(self, profiles: Mapping[str, Profile], limits: ShadowLimits | None) -> None:
        """Run these profiles from now on, within limits; none of a configuration that has none."""
        if self._waiting:
            self._skip_all("reload")
        self._series.keep(profiles)
        self._shadows, self._threshold = (), 0
        if limits is not None and profiles:
            failed = self._series.failed
            self._shadows = tuple(
                Shadow(profile, limits.seconds, self._memory, failed) for profile in profiles.values()
            )
            self._threshold, self._most = int(limits.sample_rate * _SEEDS), limits.max_queue

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:  # noqa: ARG002
        """Let a request wait for its shadows, if it is in the sample."""
        if request.seed >= self._threshold:
            return
        if len(self._waiting) >= self._most:
            self._series.skipped.labels("queue").inc()
        elif self._bytes + request.size_bytes > _MOST_BYTES:
            self._series.skipped.labels("bytes").inc()
        else:
            self._waiting.append(Tried(request, request.dry_copy(seed_of(request.seed)), result, perf_counter()))
            self._bytes += request.size_bytes
            self._wanted.set()
            self._series.waiting.labels().set(len(self._waiting))
            if self._recorder is not None:
                self._recorder.expect_shadows(request)

    async def run(self) -> None:
        """Run shadows as long as there are requests that wait for them."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(max(self._waiting[0].at + _HEAD_START_SECONDS - perf_counter(), 0.0))
            await self._run_next()

    async def _run_next(self) -> None:
        """Run all profiles for the request that has waited longest, each in a turn of its own."""
        if not self._waiting:  # a new configuration has come in between
            return
        tried = self._waiting.popleft()
        self._left(tried)
        runs: list[ShadowRun] = []
        shadows = self._shadows
        try:
            for shadow in shadows:
                if self._shadows is not shadows:  # a new configuration
                    runs.clear()
                    break
                if not shadow.problem:
                    started = perf_counter()
                    runs.append(self._run(shadow, tried))
                    await asyncio.sleep((perf_counter() - started) * (1 / SHARE - 1))
        finally:
            self._record(tried, runs)

    def _run(self, shadow: Shadow, tried: Tried) -> ShadowRun:
        compared = shadow.run(tried)
        self._series.add(compared)
        if shadow.problem:
            self._series.disabled(shadow.name)
            if all(each.problem for each in self._shadows):
                self._threshold = 0
                self._skip_all("disabled")
        return compared.run

    def _skip_all(self, reason: str) -> None:
        self._series.skipped.labels(reason).inc(len(self._waiting))
        while self._waiting:
            tried = self._waiting.popleft()
            self._left(tried)
            self._record(tried, ())

    def _record(self, tried: Tried, runs: Sequence[ShadowRun]) -> None:
        if self._recorder is not None:
            self._recorder.add_shadows(tried.request, runs)

    def _left(self, tried: Tried) -> None:
        self._bytes -= tried.request.size_bytes
        if not self._waiting:
            self._wanted.clear()
        self._series.waiting.labels().set(len(self._waiting))
