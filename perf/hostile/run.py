# SPDX-License-Identifier: Apache-2.0
"""Run all known attacks on real pickers, and report their costs in a table with targets and verdicts.

Counts and sizes are checked on any machine. Times are checked against their targets in a full run, which requires an
idle machine, and against 25 times as much in a short run.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from epp.extproc.settings import Transport
from epp.lab.child import tied_to_parent
from perf.hostile import all_rows
from perf.hostile.judging import Figure, Judge, Size
from perf.hostile.scene import Campaign
from perf.rig.orders import many_descriptors
from tests.support.transports import VARIABLE

_SUM = "in all: "


async def measure(names: Sequence[str], size: Size, soak_seconds: float) -> list[Judge]:
    """Run the rows one after the other, even if some fail."""
    judges = []
    for name in names:
        judge = Judge(name, size)
        judges.append(judge)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                await all_rows.ROWS[name](Campaign(judge, size, Path(folder), soak_seconds))
            except Exception as error:  # noqa: BLE001  reported in the table
                traceback.print_exc()
                judge.failed(f"{type(error).__name__}: {error}")
        for figure in judge.figures:
            print(figure, flush=True)
        print(f"{name:18} took {time.monotonic() - began:.0f} s\n", flush=True)
    return judges


async def measure_apart(names: Sequence[str], at_once: int, flags: Sequence[str]) -> list[Judge]:
    """Run the rows in separate processes, some at the same time: most of them wait most of the time."""
    turns = asyncio.Semaphore(at_once)

    async def one(name: str, file: Path) -> Judge:
        async with turns:
            program = (
                sys.executable,
                "-m",
                __spec__.name,
                "--only",
                name,
                "--at-once",
                "1",
                "--json",
                str(file),
                *flags,
            )
            process = await asyncio.create_subprocess_exec(*tied_to_parent(*program), stdout=asyncio.subprocess.PIPE)
            said, _ = await process.communicate()
        print(said.decode().partition(_SUM)[0], end="", flush=True)
        return _read(name, file, process.returncode)

    with tempfile.TemporaryDirectory() as folder:
        return await asyncio.gather(*(one(name, Path(folder) / f"{name}.json") for name in names))


def _read(name: str, file: Path, exit_code: int | None) -> Judge:
    """Return the figures of a process."""
    judge = Judge(name, "ci")
    if file.exists():
        judge.figures += [Figure(**figure) for figure in json.loads(file.read_text())["figures"]]
    else:
        judge.failed(f"ended with exit code {exit_code}")
    return judge


def written(judges: Sequence[Judge], size: Size, transport: str) -> str:
    """Return the figures as JSON."""
    figures = [asdict(figure) for judge in judges for figure in judge.figures]
    return json.dumps({"size": size, "transport": transport, "figures": figures}, indent=1) + "\n"


def main() -> int:
    """Return 0 if all figures are within their limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=("ci", "full"), default="full", help="ci: some minutes; full: about an hour")
    parser.add_argument("--only", action="append", choices=sorted(all_rows.ROWS), help="a row; may be repeated")
    parser.add_argument("--without", action="append", default=[], choices=sorted(all_rows.ROWS), help="the same")
    parser.add_argument("--transport", choices=[str(each) for each in Transport], help="by default that of the picker")
    parser.add_argument("--soak-minutes", type=float, help="of the row soak; by default 30, and a minute in CI")
    parser.add_argument(
        "--at-once", type=int, help="number of rows that run at the same time; by default 1, and 3 in CI"
    )
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--list", action="store_true", help="say what rows there are")
    given = parser.parse_args()
    if given.list:
        for name, row in all_rows.ROWS.items():
            print(f"{name:18} {(row.__doc__ or '').partition(chr(10))[0]}")
        return 0
    if given.transport:
        os.environ[VARIABLE] = given.transport
    many_descriptors()
    chosen = given.only or list(all_rows.IN_CI if given.size == "ci" else all_rows.ROWS)
    chosen = [name for name in chosen if name not in given.without]
    minutes = given.soak_minutes or (0.75 if given.size == "ci" else 30.0)
    at_once = given.at_once or (3 if given.size == "ci" else 1)
    if at_once > 1 and len(chosen) > 1:
        flags = ("--size", given.size, "--soak-minutes", str(minutes))
        judges = asyncio.run(measure_apart(chosen, at_once, flags))
    else:
        judges = asyncio.run(measure(chosen, given.size, minutes * 60))
    if given.json:
        given.json.write_text(written(judges, given.size, given.transport or str(Transport.ASYNCIO)))
    wrong = [figure for judge in judges for figure in judge.figures if figure.verdict == "WRONG"]
    print(f"{_SUM}{len(judges)} rows, {sum(len(judge.figures) for judge in judges)} figures, {len(wrong)} wrong")
    for figure in wrong:
        print(figure)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
