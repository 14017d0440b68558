# SPDX-License-Identifier: Apache-2.0
"""The rows of `make bench` that need an API server."""

import asyncio
import json
import sys
from pathlib import Path

from perf.bench.report.catalogue import NEEDS_API_SERVER

PROGRAM = Path(__file__).parents[2] / "perf" / "bench" / "inner" / "kube.py"


async def test_program_of_the_bench_measures_its_rows(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, "--quick"), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    figures = json.loads(out)
    assert set(figures) == NEEDS_API_SERVER
    assert all(figure > 0 for figure in figures.values())
