# SPDX-License-Identifier: Apache-2.0
"""Delays of the event loop, which all requests share: how late a timer is."""

import asyncio
from collections.abc import Callable

_INTERVAL_SECONDS = 0.1


async def follow_loop_lag(lagged: Callable[[float], None]) -> None:
    """Call `lagged` with the seconds of delay, ten times a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _INTERVAL_SECONDS
        await asyncio.sleep(_INTERVAL_SECONDS)
        lagged(max(loop.time() - due, 0.0))
