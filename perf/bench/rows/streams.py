# SPDX-License-Identifier: Apache-2.0
"""Memory per open stream after its request of 3 KiB has been routed."""

from pathlib import Path

from perf.bench.report.samples import Samples
from perf.bench.rows.plan import Plan
from perf.rig.processes import Program
from perf.rig.stand import stand

CONNECTIONS = 10
_PROGRAM = Path(__file__).parents[3] / "tests" / "support" / "many_streams.py"
_SECONDS = 60.0


async def measure(plan: Plan, samples: Samples) -> None:
    """Open streams to each picker once."""
    streams = plan.scaled(2000, 200)
    async with plan.loader() as load:
        for kind in plan.kinds:
            plan.tell(f"streams: {kind.name}")
            async with stand(load, kind, servers=8, settings={}) as found:
                before = found.picker.memory_mib
                async with await _open_streams(found.picker.grpc_port, streams) as program:
                    await program.says("routed", within_seconds=_SECONDS)
                    samples.add("stream", kind.name, (found.picker.memory_mib - before) * 1024 / streams)


async def _open_streams(port: int, streams: int) -> Program:
    """Simulate a gateway with very many streams, with a program of the end-to-end tests."""
    return await Program.run(_PROGRAM, str(port), str(streams), str(CONNECTIONS))
