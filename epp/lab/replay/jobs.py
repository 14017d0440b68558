# SPDX-License-Identifier: Apache-2.0
"""Replays in parallel processes."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from epp.config import LoadedConfig
from epp.framework import ConfigurationError
from epp.lab.child import die_with_parent
from epp.lab.replay.fleet import Fleet, ReplayOptions
from epp.lab.replay.outcome import Outcome
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.traces.reading import open_trace
from epp.lab.traces.trace import Trace

_SPAWN = multiprocessing.get_context("spawn")


class TraceFile(NamedTuple):
    path: Path
    format: str = ""
    """Name of the format; empty to detect it."""
    rate: float | None = None
    """Requests per second, for a trace without times."""

    def open(self) -> Trace:
        """Return the trace; raises TraceError."""
        return open_trace(self.path, format=self.format, rate=self.rate)


class Job(NamedTuple):
    config: LoadedConfig
    fleet: Fleet
    trace: TraceFile
    options: ReplayOptions


def replay(
    config: LoadedConfig,
    fleet: Fleet,
    trace: Trace,
    options: ReplayOptions,
    progress: Callable[[Simulation], bool] | None = None,
) -> Outcome:
    """Return the outcome of the requests of a trace; raises ConfigurationError if they cannot be replayed.

    `progress` is called at intervals of virtual time; if it returns False, the replay stops, and the outcome is that
    of the requests so far. All arguments but `progress` can be pickled, and so can the outcome.
    """
    traffic = TraceTraffic(trace, rate_scale=options.rate_scale, limit=options.limit)
    return Simulation(config, fleet, traffic, options).run(progress)


def available_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[Job], report: Callable[[int, float], None] = lambda _, __: None, *, workers: int = 0
) -> list[Outcome]:
    """Return the outcomes of jobs, in their order; raises the ConfigurationError or TraceError of a job.

    Jobs run in `workers` processes, by default one per CPU; a single job runs in this process. `report` receives the
    number of a job and its virtual time since the start of the trace.
    """
    workers = workers or available_cpus()
    if len(jobs) == 1:
        return [_run(jobs[0], partial(report, 0))]
    left = iter(enumerate(jobs))
    running: dict[Connection, int] = {}
    processes: list[Any] = []
    outcomes: dict[int, Outcome] = {}
    try:
        for number, job in islice(left, workers):
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_work, args=(theirs, job, os.getpid()), daemon=True)
            with _interrupts_blocked():
                process.start()
            theirs.close()
            processes.append(process)
            running[ours] = number
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)  # noqa: S101
                found = _received(connection)
                if isinstance(found, float):
                    report(running[connection], found)
                    continue
                if not isinstance(found, Outcome):
                    raise found
                outcomes[running.pop(connection)] = found
                for number, job in islice(left, 1):
                    connection.send(job)
                    running[connection] = number
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [outcomes[number] for number in range(len(jobs))]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in processes that start inside the context: only the parent handles Ctrl-C."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(connection: Connection) -> Outcome | Exception | float:
    try:
        found: Outcome | Exception | float = connection.recv()
    except EOFError:
        return ConfigurationError("a replay process ended unexpectedly: perhaps it ran out of memory")
    return found


def _run(job: Job, report: Callable[[float], None]) -> Outcome:
    def progress(now: Simulation) -> bool:
        report(now.seconds)
        return True

    return replay(job.config, job.fleet, job.trace.open(), job.options, progress)


def _work(connection: Connection, job: Job, parent: int) -> None:
    """Run a job and further received ones, since a process takes a second to start; send progress and outcomes."""
    if sys.platform == "linux" and not die_with_parent(parent):
        return
    while True:
        try:
            found: Outcome | Exception = _run(job, connection.send)
        except Exception as error:  # noqa: BLE001  raised again in the parent
            found = error
        connection.send(found)
        try:
            job = connection.recv()
        except EOFError:  # the parent has no more jobs
            return
