# SPDX-License-Identifier: Apache-2.0
"""One shadow profile: its runs within limits of time and memory, and the comparison of its picks."""

import resource
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, TypeVar, TypeVarTuple

import structlog
import xxhash
from msgspec.structs import replace

from epp.explain.record import ShadowRun
from epp.explain.runs import accelerator_of, cost_of, name_of, number
from epp.framework.candidates import Candidates
from epp.framework.errors import PluginFailedError, RequestError
from epp.framework.messages import printable
from epp.framework.plugin import Failure, Guard, Plugin, Role, SchedulingObserver
from epp.framework.request import Request
from epp.framework.result import ProfileResult, SchedulingResult
from epp.framework.snapshot import ACCELERATOR
from epp.routing.scheduling.profile import Profile
from epp.routing.scheduling.scheduler import Cycle

MOST_GROWTH_OF_RUN = 64 * 2**20
"""Bytes by which one run may grow the process."""
MOST_GROWTH = 256 * 2**20
"""Bytes by which all runs together may grow the process."""
_MOST_OVERRUNS = 5.0
_FORGIVEN = 0.05
"""Overruns that one run within its time compensates."""
_WAITING = 4.0
"""Wall time that a run may take, as a multiple of its CPU time: the CPU may be busy with other processes."""
_MOST_TEXT = 200
_DIGITS = 6
_SAME = 1e-9
"""Totals that differ by less are equal."""
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
            return f"took {self._sum >> 20} MiB of memory, and does not give it back"
        return ""


class Outcome(StrEnum):
    """Outcome of a run, compared with the real pick."""

    AGREES = "agrees"
    """Same endpoint."""
    TIES = "ties"
    """Another endpoint with the same total score."""
    DIFFERS = "differs"
    REFUSED = "refused"
    """Its filters keep no endpoint."""
    FAILED = "failed"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Tried:
    """A routed request for which shadow profiles are to run."""

    request: Request
    """The real one."""
    dry: Request
    """A copy from when it was routed; it is never sent."""
    result: SchedulingResult
    at: float
    """When it was routed, in seconds of `perf_counter`."""

    def candidates(self) -> Candidates:
        """Return the candidates of the real pick before all filters, in the same snapshot."""
        primary = self.result.primary
        left = primary.candidates
        slots = primary.considered if len(primary.considered) else left.slots
        return Candidates(replace(left.snapshot, dry_run=True), slots, peer=left.peer, now=left.now)


@dataclass(frozen=True, slots=True)
class Compared:
    """A run and the real pick."""

    run: ShadowRun
    outcome: Outcome
    real_accelerator: str = ""
    real_cost: float | None = None
    """Dollars per hour."""


class _OverTimeError(Exception):
    """A run has exceeded its time; no further plugin is called."""


class Shadow(SchedulingObserver):
    """Runs one profile on the event loop, between other tasks."""

    def __init__(self, profile: Profile, seconds: float, failed: Callable[[str, str], None] | None = None) -> None:
        """`seconds` limits the CPU time of a run; `failed` is called with profile and plugin of each failed call."""
        self.name = profile.name
        self.problem = ""
        """Why it is disabled; empty while it runs."""
        self._failed = failed
        self._logged: set[str] = set()
        """Plugins whose failures have been logged."""
        self._seconds = seconds
        self._overruns = 0.0
        self._growth = Growth()
        self._guard = _BoundedGuard(self, seconds)
        self._cycle = Cycle(profile, self._guard, self)

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:  # noqa: ARG002
        """Count a failed call; the first one of each plugin is logged."""
        if self._failed is not None:
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
            candidates = tried.candidates()
            found = self._cycle.run(tried.dry, candidates.within(self.name, candidates.peer))
        except _OverTimeError:
            pass  # reported below
        except PluginFailedError as error:
            problem = str(error)
        except RequestError as error:
            outcome, problem = Outcome.REFUSED, error.detail or error.message
        except (Exception, SystemExit, CancelledError) as error:  # noqa: BLE001  whatever a plugin raises
            problem = f"{type(error).__name__}: {error}"
        seconds = perf_counter() - started
        if self._guard.is_over():
            outcome, found = Outcome.TIMEOUT, None
            problem = f"took more than {self._seconds * 1e3:g} ms, in plugin {self._guard.plugin!r}"
        self._judge(outcome, self._growth.breach(before, resident_bytes()))
        run = ShadowRun(profile=self.name, seconds=round(seconds, _DIGITS), problem=printable(problem, _MOST_TEXT))
        return Compared(run, outcome) if found is None else _compared(run, found, tried)

    def _judge(self, outcome: Outcome, breach: str) -> None:
        """Disable the profile if it takes too much time or memory."""
        if outcome is not Outcome.TIMEOUT:
            self._overruns = max(self._overruns - _FORGIVEN, 0.0)
        else:
            self._overruns += 1
            if self._overruns >= _MOST_OVERRUNS:
                breach = breach or f"took more than {self._seconds * 1e3:g} ms too often, at last in plugin " + repr(
                    self._guard.plugin
                )
        if breach:
            self.problem = breach
            _log.error(
                "shadow profile disabled",
                profile=self.name,
                reason=breach,
                remedy="mend its plugins, or give it a longer timeout; the next version of the configuration, or a "
                "restart, enables it again",
            )


class _BoundedGuard(Guard):
    """Calls no further plugin after the CPU time of a run, or four times that in wall time."""

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
        """Return whether the run has exceeded its time."""
        return thread_time() >= self._cpu_until or perf_counter() >= self._until

    def call(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        if self.is_over():
            raise _OverTimeError
        self.plugin = plugin.name
        return super().call(role, plugin, method, *arguments)


def seed_of(seed: int) -> int:
    """Return the seed for shadow profiles of a request: independent of its own random numbers."""
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
