# SPDX-License-Identifier: Apache-2.0
"""Long work in steps, between which the event loop does other things."""

import asyncio
from collections.abc import Iterable
from time import perf_counter

_STRETCH_SECONDS = 0.001
"""Time after which the event loop runs other tasks."""


async def in_turns(steps: Iterable[None]) -> None:
    """Run all steps, for a millisecond in each turn of the event loop or for one step where that takes longer."""
    until = perf_counter() + _STRETCH_SECONDS
    for _ in steps:
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + _STRETCH_SECONDS
