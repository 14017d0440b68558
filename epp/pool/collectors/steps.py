# SPDX-License-Identifier: Apache-2.0
"""Long jobs in steps, between which the event loop runs other tasks."""

import asyncio
from collections.abc import Iterable
from time import perf_counter

from epp.runtime.process import SWEEPS

STRETCH_SECONDS = 0.001
"""Time after which the event loop runs other tasks."""


async def run_in_steps(steps: Iterable[None]) -> None:
    """Run all steps, at most a millisecond (or one longer step) in each event-loop iteration."""
    started = perf_counter()
    for _ in steps:
        worked = perf_counter() - started
        if worked >= STRETCH_SECONDS:
            await pause(worked)
            started = perf_counter()


async def pause(worked_seconds: float) -> None:
    """Let the event loop run other tasks after work that created long-lived objects."""
    await asyncio.sleep(0)
    if SWEEPS.is_due(worked_seconds):
        SWEEPS.sweep()
        await asyncio.sleep(0)
