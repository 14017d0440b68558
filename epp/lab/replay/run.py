# SPDX-License-Identifier: Apache-2.0
"""Replays: one configuration on one trace, with a report of progress that can stop it."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.config import LoadedConfig
from epp.lab.replay.fleet import Fleet
from epp.lab.replay.outcome import Outcome
from epp.lab.replay.settings import ReplayOptions
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.traces.trace import Trace


@dataclass(frozen=True)
class Progress:
    """How far a replay has come."""

    seconds: float
    """Virtual time since the start of the trace."""
    requests: int
    """Requests that have arrived."""
    outcome: Callable[[], Outcome]
    """Returns the outcome so far."""


def replay(
    config: LoadedConfig,
    fleet: Fleet,
    trace: Trace,
    options: ReplayOptions,
    progress: Callable[[Progress], bool] | None = None,
) -> Outcome:
    """Return the outcome of the requests of a trace; raises ConfigurationError for what cannot be replayed.

    `progress` is called at intervals of virtual time; if it returns False, the replay stops, and the outcome is that
    of the requests so far. All arguments but `progress` can be pickled, and so can the outcome.
    """
    traffic = TraceTraffic(trace, rate_scale=options.rate_scale, limit=options.limit)
    simulation = Simulation(config, fleet, traffic, options)
    if progress is None:
        return simulation.run()
    return simulation.run(lambda run: progress(Progress(max(0.0, run.now), run.requests, run.outcome)))
