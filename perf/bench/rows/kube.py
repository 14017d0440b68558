# SPDX-License-Identifier: Apache-2.0
"""A picker with a real API server, if the programs of `make kube-assets` are built."""

from perf.bench.report.samples import Samples
from perf.bench.rows.inner import figures_of
from perf.bench.rows.plan import Plan
from perf.rig.processes import BenchError


async def measure(plan: Plan, samples: Samples) -> None:
    """Run once, for this checkout; without the programs, these rows are left out."""
    own = next((kind for kind in plan.kinds if kind.ours), None)
    if own is None or own.python is None:
        return
    figures = await figures_of("kube", own.python, quick=plan.quick)
    if figures is None:
        raise BenchError("perf/bench/inner/kube.py fails: run it by itself to see why")
    if not figures:
        plan.tell("kube: no rows without an API server; `make kube-assets` builds one")
    for row, figure in figures.items():
        samples.add(row, own.name, figure)
