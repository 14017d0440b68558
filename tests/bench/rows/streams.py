# SPDX-License-Identifier: Apache-2.0
"""Memory of an open stream whose request, of 3 KiB, has been routed."""

import os
from pathlib import Path

from report.samples import Samples
from rig.processes import Program
from rig.stand import stand

from rows.plan import Plan

CONNECTIONS = 10
_TESTS = Path(__file__).parents[2]
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
    """Be a gateway with very many streams, by a program that end-to-end tests use."""
    paths = [_TESTS / "e2e", _TESTS / "http2", _TESTS / "unit" / "extproc"]
    return await Program.run(
        _TESTS / "e2e" / "many_streams.py",
        *(str(port), str(streams), str(CONNECTIONS)),
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
