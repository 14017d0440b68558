# SPDX-License-Identifier: Apache-2.0
"""Compares the ready-made profiles: `make bench-profiles`, or `python -m perf.bench.run_profiles --help`."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import isinf
from pathlib import Path
from typing import NamedTuple

from epp.config import load_text
from epp.config.load import sample_texts
from perf.bench.profiles import real
from perf.bench.profiles.cpu import route_microseconds
from perf.bench.profiles.engines import MAKES
from perf.bench.profiles.outcome import Outcome
from perf.bench.profiles.remarks import remarks
from perf.bench.profiles.special_fleets import ALL_FLEETS
from perf.bench.profiles.virtual import simulate
from perf.bench.profiles.workloads import ALL_WORKLOADS, SPECIAL_WORKLOADS, WORKLOADS, trace
from perf.rig.processes import BenchError

SECONDS = 75.0
_REAL_SAMPLES = "llm-d-default,adaptive,heterogeneous-cost"


class Case(NamedTuple):
    """One line of the table."""

    fleet: str
    make: str
    workload: str
    load: float
    seed: int
    sample: str


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(
            "Times to the first token (p50, p90, p99), milliseconds between tokens (p50, p90 of answers), shares of "
            "requests over their target and without an answer, and dollars (busy device-seconds times price) for 1,000 "
            "requests, by profile, fleet, workload, load and seed. "
            "In virtual time, all of it in about half an hour on two cores; with --real behind an Envoy, a few minutes "
            "for each profile."
        )
    )
    parser.add_argument("--samples", default="", help="profiles or files, separated by commas; by default all")
    parser.add_argument("--fleets", default="mixed,equal", help=f"of {', '.join(ALL_FLEETS)}")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"of {', '.join(ALL_WORKLOADS)}")
    parser.add_argument("--loads", default="0.2,0.7,1.2", help="shares of the fleet's capacity")
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--makes", default="vllm", help=f"makes of engines, of {', '.join(MAKES)}")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument(
        "--real",
        action="store_true",
        help="run in real time behind an Envoy, too; not for fleets with several clusters or objects",
    )
    parser.add_argument("--cpu", action="store_true", help="CPU time of the picker for a request, instead of traffic")
    parser.add_argument("--json", type=Path, help="file for the figures of virtual time; `make docs` draws them")
    parser.add_argument("--slowness", type=float, default=4.0, help="with --real: factor on all times")
    return parser.parse_args()


def cases(given: argparse.Namespace) -> list[Case]:
    samples = given.samples or (_REAL_SAMPLES if given.real else ",".join(sample_texts()))
    return [
        Case(fleet, make, workload, float(load), int(seed), sample)
        for fleet, make, workload, load, seed, sample in product(
            given.fleets.split(","),
            given.makes.split(","),
            given.workloads.split(","),
            given.loads.split(","),
            given.seeds.split(","),
            samples.split(","),
        )
    ]


def measure(case: Case, seconds: float, slowness: float = 1.0) -> Outcome:
    """Run a case in virtual time."""
    fleet = ALL_FLEETS[case.fleet].made(case.make)
    traffic = trace(case.workload, fleet, load=case.load, seconds=seconds, seed=case.seed).slowed(slowness)
    text = sample_texts().get(case.sample) or Path(case.sample).read_text()
    return simulate(load_text(text, case.sample), fleet.slowed(slowness), traffic)


def measure_real(case: Case, seconds: float, slowness: float) -> Outcome:
    """Run a case in real time."""
    fleet = ALL_FLEETS[case.fleet].made(case.make)
    traffic = trace(case.workload, fleet, load=case.load, seconds=seconds, seed=case.seed).slowed(slowness)
    return asyncio.run(real.run(sample_texts()[case.sample], fleet.slowed(slowness), traffic))


def lines(case: Case, outcome: Outcome, note: str = "") -> Iterator[str]:
    """Yield the line of all requests, and one for each kind if there are several."""
    yield _line(case, outcome, "; ".join(filter(None, (note, remarks(ALL_FLEETS[case.fleet], outcome)))))
    for group in outcome.groups:
        yield _line(case, outcome.of_group(group), f"{group} ones alone")


def _line(case: Case, outcome: Outcome, note: str) -> str:
    times = " ".join(f"{outcome.ttft(share):8.3f}" for share in (0.5, 0.9, 0.99))
    times += " " + " ".join(f"{1000 * outcome.tpot(share):6.1f}" for share in (0.5, 0.9))
    return (
        f"{case.fleet:14} {case.make:13} {case.workload:14} {case.load:4.0%} {case.seed:4} {case.sample:22} {times} "
        f"{outcome.over_target:6.1%} {outcome.timeouts:6.1%} {outcome.dollars_per_1000:8.4f} {note}"
    ).rstrip()


HEADER = (
    f"{'fleet':14} {'make':13} {'workload':14} load seed {'profile':22} {'p50 s':>8} {'p90 s':>8} {'p99 s':>8} "
    f"{'tpot50':>6} {'tpot90':>6} {'over':>6} {'none':>6} {'$/1,000':>8}"
)


def virtual_lines(todo: Iterable[Case], seconds: float, json_file: Path | None) -> None:
    todo = list(todo)
    found = []
    with ProcessPoolExecutor(2) as pool:
        for case, outcome in zip(todo, pool.map(measure, todo, [seconds] * len(todo)), strict=True):
            print(*lines(case, outcome), sep="\n", flush=True)
            found.append(as_figure(case, outcome))
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n")


def as_figure(case: Case, outcome: Outcome) -> dict[str, object]:
    """Return the data of tools/profile_chart.py; a time is None if requests had no answer."""
    p90, p99 = (None if isinf(seconds := outcome.ttft(share)) else round(seconds, 3) for share in (0.9, 0.99))
    dollars = round(outcome.dollars_per_1000, 4)
    return {"fleet": case.fleet, "profile": case.sample, "p90_seconds": p90, "p99_seconds": p99, "dollars": dollars}


def cpu_lines(todo: Iterable[Case]) -> None:
    print(f"{'fleet':12} {'profile':22} {'us':>6}")
    for fleet, sample in dict.fromkeys((case.fleet, case.sample) for case in todo):
        print(f"{fleet:12} {sample:22} {route_microseconds(sample, ALL_FLEETS[fleet]):6.0f}", flush=True)


def refuse_unreal(todo: Iterable[Case]) -> None:
    """Exit with a message if a fleet or its traffic needs virtual time."""
    for case in todo:
        fleet = ALL_FLEETS[case.fleet]
        if fleet.is_virtual or case.workload in SPECIAL_WORKLOADS:
            sys.exit(
                f"bench: --real has no roles, clusters, sessions or several pickers, which fleet {case.fleet!r} or "
                f"workload {case.workload!r} needs: leave --real out"
            )


def main() -> None:
    """Print the table."""
    given = arguments()
    todo = cases(given)
    if given.cpu:
        cpu_lines(todo)
        return
    if given.real:
        refuse_unreal(todo)
    print(HEADER)
    if not given.real:
        virtual_lines(todo, given.seconds, given.json)
        return
    for case in todo:
        virtual = measure(case, given.seconds, given.slowness)
        print(*lines(case, virtual, "virtual"), sep="\n", flush=True)
        try:
            outcome = measure_real(case, given.seconds, given.slowness)
            print(*lines(case, outcome, "real"), sep="\n", flush=True)
        except BenchError as error:
            sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
