# SPDX-License-Identifier: Apache-2.0
"""Five thousand requests under way at once: what they cost, and that none gets another's."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epp.lab.sim.server import running
from tests.support.commands import PATIENCE_SECONDS, memory_kib
from tests.support.serving import PLAIN, serving
from tests.support.world import FAST

pytestmark = pytest.mark.slow

STREAMS = 5_000
CONNECTIONS = 10
STREAM_KIB = 80
"""What an open stream may cost the picker, with a body of 3 KiB; 41 were measured, so 5,000 took 200 MiB."""


@contextlib.asynccontextmanager
async def gateways(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    program = Path(__file__).parents[1] / "support" / "many_streams.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(program), str(port), str(STREAMS), str(CONNECTIONS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_five_thousand_streams_are_held_and_answered_within_their_memory():
    async with running(FAST) as sim, serving(sim, PLAIN) as served, gateways(served.grpc_port) as process:
        at_rest_kib = memory_kib(served.command.pid, "VmRSS")

        async def all_are(state: str) -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await process.stdout.readline()).decode().strip() == state

        async def under_way() -> float:
            (requests,) = (await served.metrics())["llm_d_epp_request_running"].values()
            return requests

        await all_are("routed")
        assert await under_way() == STREAMS
        process.stdin.write(b"\n")
        await all_are("streaming")
        assert await under_way() == STREAMS
        process.stdin.write(b"\n")
        await all_are("answered")
        assert await under_way() == 0
        assert await process.wait() == 0
        peak_kib = memory_kib(served.command.pid, "VmHWM")
        assert peak_kib - at_rest_kib < STREAMS * STREAM_KIB
