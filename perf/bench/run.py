# SPDX-License-Identifier: Apache-2.0
"""Measure CPU time and memory of this program, and print a table: `make bench` or `python -m perf.bench.run --help`."""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from perf.bench.report.document import document
from perf.bench.report.samples import Samples
from perf.bench.report.table import table
from perf.bench.rows import idle, inner, kube, latency, streams, wire
from perf.bench.rows.plan import Plan
from perf.rig.pickers import FIELDS, FLAGS, PickerKind, own, peers, transports
from perf.rig.processes import BenchError

GROUPS: dict[str, Callable[[Plan, Samples], Awaitable[None]]] = {
    "wire": wire.measure,
    "idle": idle.measure,
    "streams": streams.measure,
    "latency": latency.measure,
    "inner": inner.measure,
    "kube": kube.measure,
}
REPOSITORY = Path(__file__).parents[2]


def arguments() -> argparse.Namespace:
    fields = ", ".join(f"{{{field}}}" for field in FIELDS)
    parser = argparse.ArgumentParser(
        description=(
            "CPU time and memory of the picker's own process, behind a real Envoy, in alternating rounds. A run takes "
            "less than ten minutes on two cores."
        )
    )
    parser.add_argument("--quick", action="store_true", help="all rows with few repetitions, in about a minute")
    parser.add_argument(
        "--transport", action="append", help="a transport of this program; may be repeated; by default all of them"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="[NAME=]COMMAND",
        help=(
            "another ext_proc picker, driven in alternation in the same run; may be repeated. COMMAND is run without a "
            "shell, and must be the picker itself, whose CPU time is measured. It serves ext_proc in plaintext and "
            f"answers Envoy's health checks there. Fields: {fields}. Without any of them, the flags of llm-d-router "
            f"are appended: "
            f"{FLAGS.replace('%', '%%')}. A peer named reference sets the targets that are shares of the Go picker's "
            "figures."
        ),
    )
    parser.add_argument(
        "--peers-only", action="store_true", help="leave this program out: the first peer replaces it in ratios"
    )
    parser.add_argument("--group", action="append", choices=GROUPS, help="a group of rows; may be repeated")
    parser.add_argument("--rounds", type=int, help="turns of each picker")
    parser.add_argument(
        "--wrk", nargs="?", const="wrk", metavar="PROGRAM", help="load from wrk, if it supports the row"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the figures; by default bench.json of the repository for a run of all rows",
    )
    return parser.parse_args()


def output(given: argparse.Namespace) -> Path | None:
    """Return the file for the figures; None for a partial run."""
    if given.output is not None:
        return Path(given.output)
    partial = given.quick or given.transport or given.peer or given.group or given.rounds or given.wrk
    return None if partial else REPOSITORY / "perf/bench/bench.json"


def pickers(given: argparse.Namespace) -> list[PickerKind]:
    """Return the pickers to compare; the first one is the subject of the table."""
    ours = [] if given.peers_only else [own(name) for name in given.transport or transports() or ("",)]
    found = [*ours, *peers(given.peer)]
    if not found:
        raise BenchError("--peers-only: there is no --peer")
    return found


def program(name: str | None) -> str | None:
    """Return the path of a program; raises BenchError if there is none."""
    path = None if name is None else shutil.which(name)
    if name is not None and path is None:
        raise BenchError(f"--wrk: there is no program {name!r}: install it, or leave the flag out")
    return path


async def measure(plan: Plan, groups: Sequence[str]) -> tuple[Samples, list[str]]:
    """Run the groups one after the other; return the figures, and the reasons of groups that ended early."""
    samples, problems = Samples(), []
    for name in groups:
        started = time.monotonic()
        try:
            await GROUPS[name](plan, samples)
        except BenchError as error:
            problems.append(f"{name}: {error}")
        plan.tell(f"{name}: {time.monotonic() - started:.0f} s")
    return samples, problems


def main() -> None:
    """Measure, print the table, write bench.json."""
    given = arguments()
    try:
        kinds = pickers(given)
        plan = Plan(kinds, given.quick, given.rounds, program(given.wrk))
        samples, problems = asyncio.run(measure(plan, given.group or list(GROUPS)))
    except BenchError as error:
        sys.exit(f"bench: {error}")
    found = document(samples, kinds=kinds, quick=given.quick, load="wrk" if plan.wrk else "perf/rig/load.py")
    print(table(found))
    path = output(given)
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if problems:
        sys.exit("\n".join(f"bench: {problem}" for problem in problems))


if __name__ == "__main__":
    main()
