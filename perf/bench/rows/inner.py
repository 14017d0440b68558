# SPDX-License-Identifier: Apache-2.0
"""Parts of this program, each measured by a program of `perf/bench/inner/` in a separate process.

A peer that is another checkout of this program, such as `path/.venv/bin/epp serve`, is also measured.
"""

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from perf.bench.report.samples import Samples
from perf.bench.rows.plan import Plan
from perf.rig.processes import BenchError

PROGRAMS = (
    *("decision", "session", "bodies", "observers", "prefix_index", "kv_events"),
    *("pool", "filters", "flow_control", "quotas"),
)
_INNER = Path(__file__).parents[1] / "inner"
_SECONDS = 120.0
_ROUNDS, _ROUNDS_SECONDS = 3, 40.0


async def measure(plan: Plan, samples: Samples) -> None:
    """Run each program for each checkout, alternating between them."""
    for _ in plan.rounds_of("inner", _ROUNDS, seconds=_ROUNDS_SECONDS):
        for program in PROGRAMS:
            for names, python in _interpreters(plan):
                figures = await figures_of(program, python, quick=plan.quick)
                if figures is None and python == sys.executable:
                    raise BenchError(f"perf/bench/inner/{program}.py fails: run it by itself to see why")
                for row, figure in (figures or {}).items():
                    for name in names:
                        samples.add(row, name, figure)


def _interpreters(plan: Plan) -> Iterable[tuple[list[str], str]]:
    """Yield the names of pickers and their Python interpreters."""
    found: dict[str, list[str]] = {}
    for kind in plan.programs:
        if kind.python is not None:
            found.setdefault(kind.python, []).append(kind.name)
    return ((names, python) for python, names in found.items())


async def figures_of(program: str, python: str, *, quick: bool) -> dict[str, float] | None:
    """Return the output of a program; None if it fails, for example with an older version."""
    process = await asyncio.create_subprocess_exec(
        *(python, str(_INNER / f"{program}.py"), *(["--quick"] if quick else [])),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return json.loads(out) if process.returncode == 0 else None
