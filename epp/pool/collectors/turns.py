# SPDX-License-Identifier: Apache-2.0
"""Long work in steps, between which the event loop does other things."""

import asyncio
from collections.abc import Iterable
from time import perf_counter

from epp.runtime.process import SWEEPS

STRETCH_SECONDS = 0.001
"""Time after which the event loop runs other tasks."""


async def in_turns(steps: Iterable[None]) -> None:
    """Run all steps, for a millisecond in each turn of the event loop or for one step where that takes longer."""
    started = perf_counter()
    for _ in steps:
        worked = perf_counter() - started
        if worked >= STRETCH_SECONDS:
            await pause(worked)
            started = perf_counter()


async def pause(worked_seconds: float) -> None:
    """Let the event loop run other tasks after a stretch of work that makes objects which stay."""
    await asyncio.sleep(0)
    if SWEEPS.is_due(worked_seconds):
        SWEEPS.sweep()
        await asyncio.sleep(0)
