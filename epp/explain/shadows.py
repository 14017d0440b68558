# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles: run for a sample of the routed requests after their responses have started, within limits."""

import asyncio
import resource
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, TypeVar, TypeVarTuple

import structlog
import xxhash
from msgspec.structs import replace
from prometheus_client.registry import CollectorRegistry

from epp.explain.record import ShadowRun
from epp.explain.recorder import Recorder
from epp.explain.runs import accelerator_of, before_filters, cost_of, name_of, number
from epp.framework.candidates import Candidates
from epp.framework.errors import PluginFailedError, RequestError
from epp.framework.messages import printable
from epp.framework.plugin import Failure, Guard, Plugin, Role, SchedulingObserver
from epp.framework.request import Request
from epp.framework.result import ProfileResult, SchedulingResult
from epp.framework.roles import ShadowLimits
from epp.framework.snapshot import ACCELERATOR
from epp.routing.director import DirectorObserver
from epp.routing.scheduling.profile import Profile
from epp.routing.scheduling.scheduler import Cycle
from epp.telemetry.families import Families
from epp.telemetry.request_series import OTHER, Bounded

SHADOW, REAL = "shadow", "real"
_MOST_ACCELERATORS = 64
"""Maximum number of accelerators in metrics."""
_GAPS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)
SHARE = 0.05
"""Share of the event loop's time that shadow profiles may take."""
_HEAD_START_SECONDS = 0.001
"""Delay after routing, so that the response of the request is sent first."""
_MOST_BYTES = 32 * 2**20
"""Limit on the total size of the bodies of waiting requests."""
_SEEDS = 2**64
MOST_GROWTH_OF_RUN = 64 * 2**20
"""Growth of the process that one run may cause, in bytes."""
MOST_GROWTH = 256 * 2**20
"""Growth of the process that all runs together may cause, in bytes."""
_MOST_OVERRUNS = 5.0
_FORGIVEN = 0.05
"""Number of overruns that one run within its time offsets."""
_WAITING = 4.0
"""Limit on the wall time of a run as a multiple of its CPU time, because other processes may use the CPU."""
_MOST_TEXT = 200
_DIGITS = 6
_SAME = 1e-9
"""Tolerance of equal totals."""
T = TypeVar("T")
A = TypeVarTuple("A")
_log = structlog.get_logger()


def resident_bytes() -> int:
    """Return the resident size of this process; 0 if it cannot be read."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


class Growth:
    """Growth of the process by the runs of one profile."""

    def __init__(self) -> None:
        self._least = 0
        self._sum = 0

    def breach(self, before: int, after: int) -> str:
        """Record the size of the process before and after a run; return the exceeded limit, empty for none."""
        grown = after - before
        if not self._least or before <= self._least:
            self._least, self._sum = before, 0
        self._sum = max(self._sum + grown, 0)
        if grown > MOST_GROWTH_OF_RUN:
            return f"took {grown >> 20} MiB of memory for one request"
        if min(self._sum, after - self._least) > MOST_GROWTH:
            return f"took {self._sum >> 20} MiB of memory, and did not release it"
        return ""


class Outcome(StrEnum):
    """Outcome of a run, compared with the real pick."""

    AGREES = "agrees"
    """The same endpoint."""
    TIES = "ties"
    """Another endpoint with the same total score."""
    DIFFERS = "differs"
    REFUSED = "refused"
    """The filters keep no endpoint."""
    FAILED = "failed"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Tried:
    """A routed request for which shadow profiles are to run."""

    request: Request
    """The routed request."""
    dry: Request
    """A copy from the time of routing; it is never sent."""
    result: SchedulingResult
    at: float
    """Time of routing, in seconds of `perf_counter`."""


@dataclass(frozen=True, slots=True)
class Compared:
    run: ShadowRun
    outcome: Outcome
    real_accelerator: str = ""
    real_cost: float | None = None
    """Dollars per hour."""


class _OverTimeError(Exception):
    """A run has exceeded its time; no further plugin is called."""


class Shadow(SchedulingObserver):
    """Runs one profile on the event loop, between other tasks."""

    def __init__(self, profile: Profile, seconds: float, failed: Callable[[str, str], None]) -> None:
        """`seconds` limits the CPU time of a run; `failed` receives the profile and plugin of each failed call."""
        self.name = profile.name
        self.problem = ""
        """Reason that the profile is disabled; empty while it runs."""
        self._failed = failed
        self._logged: set[str] = set()
        """Plugins whose failures have been logged."""
        self._seconds = seconds
        self._overruns = 0.0
        self._growth = Growth()
        self._guard = _BoundedGuard(self, seconds)
        self._cycle = Cycle(profile, self._guard, self)

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:  # noqa: ARG002
        """Count a failed call, and log the first one of each plugin."""
        self._failed(self.name, plugin)
        if plugin not in self._logged:
            self._logged.add(plugin)
            _log.warning("plugin of a shadow profile failed", profile=self.name, plugin=plugin, reason=problem)

    def run(self, tried: Tried) -> Compared:
        """Return the pick of the profile for a request; never raises."""
        started, before = perf_counter(), resident_bytes()
        found: ProfileResult | None = None
        outcome, problem = Outcome.FAILED, ""
        self._guard.begin()
        try:
            real = before_filters(tried.result.primary)
            snapshot = replace(real.snapshot, dry_run=True)
            candidates = Candidates(snapshot, real.slots, profile=self.name, peer=real.peer, now=real.now)
            found = self._cycle.run(tried.dry, candidates)
        except _OverTimeError:
            pass  # reported below
        except PluginFailedError as error:
            problem = str(error)
        except RequestError as error:
            outcome, problem = Outcome.REFUSED, error.detail or error.message
        except (Exception, SystemExit, CancelledError) as error:  # noqa: BLE001  a plugin may raise anything
            problem = f"{type(error).__name__}: {error}"
        seconds = perf_counter() - started
        if self._guard.is_over():
            outcome, found = Outcome.TIMEOUT, None
            problem = f"took more than {self._seconds * 1e3:g} ms, in plugin {self._guard.plugin!r}"
        self._check_limits(outcome, self._growth.breach(before, resident_bytes()))
        run = ShadowRun(profile=self.name, seconds=round(seconds, _DIGITS), problem=printable(problem, _MOST_TEXT))
        return Compared(run, outcome) if found is None else _compared(run, found, tried)

    def _check_limits(self, outcome: Outcome, breach: str) -> None:
        """Disable the profile if it takes too much time or memory."""
        if outcome is not Outcome.TIMEOUT:
            self._overruns = max(self._overruns - _FORGIVEN, 0.0)
        else:
            self._overruns += 1
            if self._overruns >= _MOST_OVERRUNS and not breach:
                breach = f"repeatedly took more than {self._seconds * 1e3:g} ms, last in plugin {self._guard.plugin!r}"
        if breach:
            self.problem = breach
            _log.error(
                "shadow profile disabled",
                profile=self.name,
                reason=breach,
                remedy="fix its plugins, or give it a longer timeout; the next version of the configuration, or a "
                "restart, enables it again",
            )


class _BoundedGuard(Guard):
    """Stops calling plugins after the CPU time of a run, or four times that in wall time."""

    __slots__ = ("_cpu_until", "_seconds", "_until", "plugin")

    def __init__(self, observer: SchedulingObserver, seconds: float) -> None:
        super().__init__(observer)
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        self._cpu_until = thread_time() + self._seconds
        self._until = perf_counter() + self._seconds * _WAITING
        self.plugin = ""
        """The last plugin called."""

    def is_over(self) -> bool:
        return thread_time() >= self._cpu_until or perf_counter() >= self._until

    def call(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        if self.is_over():
            raise _OverTimeError
        self.plugin = plugin.name
        return super().call(role, plugin, method, *arguments)


def seed_of(seed: int) -> int:
    """Return the seed for shadow profiles of a request, which is independent of its own random numbers."""
    return xxhash.xxh3_64_intdigest(b"shadow", seed)


def _compared(run: ShadowRun, found: ProfileResult, tried: Tried) -> Compared:
    primary = tried.result.primary
    snapshot = primary.candidates.snapshot
    tags = snapshot.records(ACCELERATOR).values
    slot, real = found.slot, primary.slot
    gap: float | None = 0.0
    outcome = Outcome.AGREES
    if slot != real:
        places = (found.candidates.slots == real).nonzero()[0]
        gap = None
        if len(places):
            gap = number(found.totals.item(found.picked.item(0)) - found.totals.item(places.item(0)))
        outcome = Outcome.TIES if gap is not None and abs(gap) < _SAME else Outcome.DIFFERS
    tag = tags[slot]
    run = replace(
        run,
        endpoint=name_of(snapshot, slot),
        agrees=slot == real,
        score_gap=gap,
        accelerator=accelerator_of(tag),
        cost_per_hour=cost_of(tag),
    )
    return Compared(run, outcome, accelerator_of(tags[real]), cost_of(tags[real]))


class ShadowSeries:
    def __init__(self, registry: CollectorRegistry) -> None:
        families, of_profile = Families(registry), ("profile",)
        self._runs = families.counters(
            "shadow_runs",
            "Runs of shadow profiles by outcome: agrees, ties (another endpoint with the same score), "
            "differs, refused (its filters left none), failed or timeout.",
            ("profile", "outcome"),
        )
        self._gap = families.histograms(
            "shadow_score_gap",
            "Score of the shadow pick minus that of the real pick, by the scorers of the shadow profile, if the real "
            "pick passes its filters; at least 0.",
            _GAPS,
            of_profile,
        )
        self._seconds = families.histograms("shadow_duration_seconds", "Duration of a run.", _SECONDS, of_profile)
        self._picks = families.counters(
            "shadow_picks",
            "Picks of a shadow profile and real picks of the same requests, by accelerator class, or else model.",
            ("profile", "by", "accelerator"),
        )
        self._dollars = families.counters(
            "shadow_cost_per_hour_dollars",
            "Sum of the dollars an hour of the endpoints picked by a shadow profile, and of the real picks of the same "
            "requests, if both have a price.",
            ("profile", "by"),
        )
        self._priced = families.counters("shadow_priced_picks", "Picks in each of these sums.", of_profile)
        self.failures = families.counters(
            "shadow_plugin_failures", "Failed calls of plugins of shadow profiles.", ("profile", "plugin")
        )
        self.skipped = families.counters(
            "shadow_skipped",
            "Sampled requests that were skipped: queue, too many waited; bytes, their bodies together were too large; "
            "reload, the configuration changed; disabled, all shadow profiles were disabled.",
            ("reason",),
        )
        self.disabled = families.gauges(
            "shadow_disabled", "1 for a shadow profile that is disabled: it took too much time or memory.", of_profile
        )
        self.waiting = families.gauges("shadow_queue_size", "Requests that wait for shadow profiles.").labels()
        self._accelerators = Bounded[str](_MOST_ACCELERATORS)

    def keep(self, profiles: Collection[str]) -> None:
        """Show only these profiles, all enabled."""
        for family in (self._runs, self._gap, self._seconds, self._picks, self._dollars, self._priced, self.failures):
            for values in family.values():
                if values[0] not in profiles:
                    family.remove(*values)
        self.disabled.clear()
        for profile in profiles:
            self.disabled.labels(profile).set(0)
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

    def _named(self, accelerator: str) -> str:
        return self._accelerators.shown(accelerator, OTHER) or "unknown"


class Shadows(DirectorObserver):
    """All shadow profiles of a picker.

    A sampled request is queued with a copy of the data of its producers. `run` runs the profiles later, in a small
    share of the event loop's time; requests that exceed this share are skipped and counted.
    """

    def __init__(self, registry: CollectorRegistry, recorder: Recorder | None = None) -> None:
        self._series = ShadowSeries(registry)
        self._recorder = recorder
        self._shadows: tuple[Shadow, ...] = ()
        self._threshold = 0
        self._most = 0
        self._waiting: deque[Tried] = deque()
        self._bytes = 0
        self._work_available = asyncio.Event()

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
            failed = self._series.failures.count
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
            self._work_available.set()
            self._series.waiting.set(len(self._waiting))
            if self._recorder is not None:
                self._recorder.expect_shadows(request)

    async def run(self) -> None:
        while True:
            await self._work_available.wait()
            await asyncio.sleep(max(self._waiting[0].at + _HEAD_START_SECONDS - perf_counter(), 0.0))
            await self._run_next()

    async def _run_next(self) -> None:
        """Run all profiles for the oldest request, each in a separate event-loop iteration."""
        if not self._waiting:  # the configuration has changed
            return
        tried = self._waiting.popleft()
        self._update_size(tried)
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
            self._series.disabled.labels(shadow.name).set(1)
            if all(each.problem for each in self._shadows):
                self._threshold = 0
                self._skip_all("disabled")
        return compared.run

    def _skip_all(self, reason: str) -> None:
        self._series.skipped.labels(reason).inc(len(self._waiting))
        while self._waiting:
            tried = self._waiting.popleft()
            self._update_size(tried)
            self._record(tried, ())

    def _record(self, tried: Tried, runs: Sequence[ShadowRun]) -> None:
        if self._recorder is not None:
            self._recorder.add_shadows(tried.request, runs)

    def _update_size(self, tried: Tried) -> None:
        self._bytes -= tried.request.size_bytes
        if not self._waiting:
            self._work_available.clear()
        self._series.waiting.set(len(self._waiting))
