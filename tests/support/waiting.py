# SPDX-License-Identifier: Apache-2.0
"""A wait with a deadline that says what it waited for."""

import asyncio
import inspect
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition, which may be a coroutine function; fails with its name."""
    try:
        async with asyncio.timeout(seconds):
            while not await _value(condition()):  # noqa: ASYNC110  conditions have no event in common
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"waited {seconds:g} s in vain until {what}") from error


async def _value(result: object) -> object:
    return await result if inspect.isawaitable(result) else result
