# SPDX-License-Identifier: Apache-2.0
"""Waits with a deadline that say what they waited for."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition, which may be a coroutine function; fails with its name."""
    try:
        async with asyncio.timeout(seconds):
            while not await _value(condition()):  # noqa: ASYNC110  conditions have no event in common
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"waited {seconds:g} s in vain until {what}") from error


async def read_until(
    read: Callable[[], Awaitable[T]], accept: Callable[[T], object], what: str, seconds: float = 20.0
) -> T:
    """Read a value again and again until it is accepted, and return it; fails with the last value."""
    value: Any = None

    async def accepted() -> object:
        nonlocal value
        value = await read()
        return accept(value)

    try:
        await until(accepted, what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last value was {value!r}") from error
    return value


async def _value(result: object) -> object:
    return await result if inspect.isawaitable(result) else result
