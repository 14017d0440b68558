# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles: run for a sample of the routed requests after their responses have started."""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from time import perf_counter

from prometheus_client.registry import CollectorRegistry

from epp.explain.record import ShadowRun
from epp.explain.recorder import Recorder
from epp.explain.shadow import Compared, Outcome, Shadow, Tried, seed_of
from epp.framework.request import Request
from epp.framework.result import SchedulingResult
from epp.framework.roles import ShadowLimits
from epp.routing.director import DirectorObserver
from epp.routing.scheduling.profile import Profile
from epp.telemetry.families import Counters, Gauges, Histograms

SHADOW, REAL = "shadow", "real"
_MOST_ACCELERATORS = 64
"""Largest number of accelerators in metrics."""
_OTHER = "other"
_GAPS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)
SHARE = 0.05
"""Share of the event loop's time for shadow profiles."""
_HEAD_START_SECONDS = 0.001
"""Delay after the routing of a request, so that its response is sent first."""
_MOST_BYTES = 32 * 2**20
"""Limit on the bodies of waiting requests together."""
_SEEDS = 2**64


class ShadowSeries:
    """Metrics of shadow profiles, written on the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        of_profile = ("profile",)
        self._runs = Counters(
            "llm_d_epp_shadow_runs",
            "Runs of shadow profiles by outcome: agrees, ties (another endpoint, which scores the same), "
            "differs, refused (its filters left none), failed or timeout.",
            ("profile", "outcome"),
            registry,
        )
        self._gap = Histograms(
            "llm_d_epp_shadow_score_gap",
            "How much higher the pick of a shadow profile scores than the real one, by its own scorers, where the "
            "real one passes its filters; 0 where it does not.",
            of_profile,
            _GAPS,
            registry,
        )
        self._seconds = Histograms(
            "llm_d_epp_shadow_duration_seconds",
            "Time that a shadow profile took for a request.",
            of_profile,
            _SECONDS,
            registry,
        )
        self._picks = Counters(
            "llm_d_epp_shadow_picks",
            "Picks by accelerator class, or else model: those of a shadow profile, and the real ones of the same "
            "requests.",
            ("profile", "by", "accelerator"),
            registry,
        )
        self._dollars = Counters(
            "llm_d_epp_shadow_cost_per_hour_dollars",
            "Sum of the dollars an hour of the endpoints picked, where both have a price: by a shadow profile, and the "
            "real ones of the same requests.",
            ("profile", "by"),
            registry,
        )
        self._priced = Counters("llm_d_epp_shadow_priced_picks", "Picks in each of these sums.", of_profile, registry)
        self._failures = Counters(
            "llm_d_epp_shadow_plugin_failures",
            "Failed calls of plugins of shadow profiles.",
            ("profile", "plugin"),
            registry,
        )
        self.skipped = Counters(
            "llm_d_epp_shadow_skipped",
            "Sampled requests that were skipped: queue, too many waited; bytes, their bodies were too large together; "
            "reload, the configuration changed; disabled, all shadow profiles were disabled.",
            ("reason",),
            registry,
        )
        self._disabled = Gauges(
            "llm_d_epp_shadow_disabled",
            "1 for a shadow profile that is disabled, since it took too much time or memory.",
            of_profile,
            registry,
        )
        self.waiting = Gauges("llm_d_epp_shadow_queue_size", "Requests that wait for shadow profiles.", (), registry)
        self._accelerators: set[str] = set()

    def keep(self, profiles: Collection[str]) -> None:
        """Show these profiles, all enabled, and no others."""
        for family in (self._runs, self._gap, self._seconds, self._picks, self._dollars, self._priced, self._failures):
            for values in family.values():
                if values[0] not in profiles:
                    family.remove(*values)
        self._disabled.clear()
        for profile in profiles:
            self._disabled.labels(profile).set(0)
            for outcome in Outcome:
                self._runs.labels(profile, outcome.value)

    def add(self, compared: Compared) -> None:
        run = compared.run
        name = run.profile
        self._runs.labels(name, compared.outcome.value).inc()
        self._seconds.labels(name).observe(run.seconds)
        if not run.endpoint:
            return
        if run.score_gap is not None:
            self._gap.labels(name).observe(max(run.score_gap, 0.0))
        self._picks.labels(name, SHADOW, self._named(run.accelerator)).inc()
        self._picks.labels(name, REAL, self._named(compared.real_accelerator)).inc()
        if run.cost_per_hour is not None and compared.real_cost is not None:
            self._dollars.labels(name, SHADOW).inc(run.cost_per_hour)
            self._dollars.labels(name, REAL).inc(compared.real_cost)
            self._priced.labels(name).inc()

    def failed(self, profile: str, plugin: str) -> None:
        self._failures.labels(profile, plugin).inc()

    def disabled(self, profile: str) -> None:
        self._disabled.labels(profile).set(1)

    def _named(self, accelerator: str) -> str:
        if accelerator not in self._accelerators:
            if len(self._accelerators) >= _MOST_ACCELERATORS:
                return _OTHER
            self._accelerators.add(accelerator)
        return accelerator or "unknown"


class Shadows(DirectorObserver):
    """All shadow profiles of a picker.

    A sampled request costs a few references and a copy of the data of its producers. `run` runs the profiles later, in
    a small share of the event loop's time; requests that do not fit into that share are skipped and counted.
    """

    def __init__(self, registry: CollectorRegistry, recorder: Recorder | None = None) -> None:
        self._series = ShadowSeries(registry)
        self._recorder = recorder
        self._shadows: tuple[Shadow, ...] = ()
        self._threshold = 0
        self._most = 0
        self._waiting: deque[Tried] = deque()
        self._bytes = 0
        self._wanted = asyncio.Event()

    @property
    def problems(self) -> Sequence[Mapping[str, str]]:
        """Disabled profiles with the reason; may be read in any thread."""
        return [{"profile": each.name, "problem": each.problem} for each in self._shadows if each.problem]

    def use(self, profiles: Mapping[str, Profile], limits: ShadowLimits | None) -> None:
        """Replace the profiles and their limits; None for no shadow profiles."""
        if self._waiting:
            self._skip_all("reload")
        self._series.keep(profiles)
        self._shadows, self._threshold = (), 0
        if limits is not None and profiles:
            failed = self._series.failed
            self._shadows = tuple(Shadow(profile, limits.seconds, failed) for profile in profiles.values())
            self._threshold, self._most = int(limits.sample_rate * _SEEDS), limits.max_queue

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:  # noqa: ARG002
        """Queue a request for shadow profiles, if it is in the sample."""
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
        """Run shadow profiles for queued requests until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(max(self._waiting[0].at + _HEAD_START_SECONDS - perf_counter(), 0.0))
            await self._run_next()

    async def _run_next(self) -> None:
        """Run all profiles for the oldest request, each in a separate event-loop iteration."""
        if not self._waiting:  # the configuration has changed
            return
        tried = self._waiting.popleft()
        self._left(tried)
        runs: list[ShadowRun] = []
        shadows = self._shadows
        try:
            for shadow in shadows:
                if self._shadows is not shadows:  # the configuration has changed
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
