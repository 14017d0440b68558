# SPDX-License-Identifier: Apache-2.0
"""Compare replays with real time: `make replay-proof`, or `python -m perf.fidelity.run --help`."""

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from epp.config import load_text
from epp.explain.record import DecisionRecord
from epp.lab.replay.fleet import ReplayOptions, load_fleet
from epp.lab.replay.jobs import replay
from epp.lab.replay.outcome import merge
from epp.lab.replay.summary import quantile, summarise
from epp.lab.traces.reading import open_trace
from perf.fidelity.cases import CASES, Case
from perf.fidelity.playing import DECISIONS, TRACE, Played, gateway, play
from perf.rig.processes import BenchError

_FIGURES = {"ttft": "first token", "total": "whole request"}
_SHARES = {"p50": 0.5, "p90": 0.9}
_SEEDS = 5
_LIMITS = {"p50": 0.10, "p90": 0.20}
"""Largest difference between a replay of the trace and the clients."""
_RECORD_LIMIT = 0.15
"""Largest difference, at p90, between a replay of the decision file and the decision file."""
_HEADER = f"""\
| traffic | seconds | p50 | replay | | p90 | replay | | p90 recorded | replay | |
|---|---|{3 * "--:|--:|--:|"}"""

Quantiles = dict[str, dict[str, float]]
"""Seconds by figure and quantile."""


async def measure(case: Case, directory: Path) -> list[Played]:
    """Play the trace of a case and write its files."""
    async with gateway(case, directory) as url:
        return await play(case, directory, url)


def quantiles(times: Sequence[tuple[float, float]]) -> Quantiles:
    """Return quantiles of the times to the first token, and of the times of whole requests."""
    columns = dict(zip(_FIGURES, np.array(times).T, strict=True))
    return {name: {share: quantile(times, part) for share, part in _SHARES.items()} for name, times in columns.items()}


def recorded(path: Path) -> Iterator[tuple[float, float]]:
    """Yield the times of the requests in a decision file that a replay uses."""
    for line in path.read_bytes().splitlines():
        record = msgspec.json.decode(line, type=DecisionRecord)
        first, total = record.timings.first_byte, record.timings.total
        if record.ending is not None and record.ending.completion_tokens and first is not None and total is not None:
            yield first, total


def replayed(case: Case, directory: Path, trace: str) -> Quantiles:
    """Replay a file as `epp replay` does by default."""
    profiles = [f"{name}={directory / profile.name}.yaml" for name, profile in case.profiles.items()]
    fleet = load_fleet(directory / "endpoints.yaml", profiles)
    config = load_text((directory / "config.yaml").read_text(), case.config)
    file = open_trace(directory / trace)
    found = summarise(merge([replay(config, fleet, file, ReplayOptions(seed=seed)) for seed in range(_SEEDS)]))
    return {name: {share: getattr(getattr(found, name), share) or math.inf for share in _SHARES} for name in _FIGURES}


def rows(case: Case, directory: Path, played: Sequence[Played]) -> Iterator[tuple[str, bool]]:
    """Yield the rows of a case, each with whether all differences are within the limits."""
    records = list(recorded(directory / DECISIONS))
    if len(records) != len(played):
        raise BenchError(f"the decision file has {len(records)} of {len(played)} requests")
    clients, record = quantiles([(one.ttft, one.total) for one in played]), quantiles(records)
    of_trace, of_record = replayed(case, directory, TRACE), replayed(case, directory, DECISIONS)
    for name, title in _FIGURES.items():
        pairs = [(clients[name][share], of_trace[name][share], limit) for share, limit in _LIMITS.items()]
        pairs.append((record[name]["p90"], of_record[name]["p90"], _RECORD_LIMIT))
        cells = " | ".join(f"{real:.3f} | {other:.3f} | {other / real - 1:+.1%}" for real, other, _ in pairs)
        held = all(abs(other / real - 1) <= limit for real, other, limit in pairs)
        yield f"| {case.name} | {title} | {cells} |" + ("" if held else " over the limit"), held


def lateness(case: Case, played: Sequence[Played]) -> str:
    """Return a text with the delays of requests."""
    late = [1000 * quantile(np.array([one.late for one in played]), share) for share in (0.5, 0.99, 1.0)]
    times = "p50 {:.1f} ms, p99 {:.1f} ms, at most {:.1f} ms".format(*late)
    return f"{case.name}: {len(played)} requests, sent late by {times}"


def main() -> None:
    """Print the table; exit with 1 if a difference is over its limit."""
    parser = argparse.ArgumentParser(description="Compare replays of traces with real time.")
    parser.add_argument(
        "--only", nargs="+", choices=CASES, default=list(CASES), help="names of traffic", metavar="NAME"
    )
    parser.add_argument("--keep", type=Path, help="directory for traces, configurations and decision files")
    given = parser.parse_args()
    kept, notes = True, []
    print(_HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="epp-fidelity-") as temporary:
        for case in map(CASES.__getitem__, given.only):
            directory = (given.keep or Path(temporary)) / case.name
            try:
                played = uvloop.run(measure(case, directory))
                for row, held in rows(case, directory, played):
                    kept = kept and held
                    print(row, flush=True)
            except (BenchError, TimeoutError) as error:
                sys.exit(f"fidelity: {case.name}: {str(error) or 'no answer in time'}")
            notes.append(lateness(case, played))
    print("", *notes, sep="\n")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
