# SPDX-License-Identifier: Apache-2.0
"""Calls into an event loop from another thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine

import pytest

from epp.admin.answers import AdminError, LoopCalls


def elsewhere(calls: LoopCalls, work: Callable[[], object]) -> object:
    """Call in another event loop; return the result, or what was raised."""

    async def ask() -> object:
        try:
            return await calls.call(work)
        except (AdminError, ZeroDivisionError) as error:
            return error

    return asyncio.run(ask())


async def test_work_is_done_by_the_loop_and_its_result_or_error_comes_back():
    calls = LoopCalls(asyncio.get_running_loop())
    done_in = await asyncio.to_thread(elsewhere, calls, threading.current_thread)
    assert done_in is threading.current_thread()
    assert isinstance(await asyncio.to_thread(elsewhere, calls, lambda: 1 // 0), ZeroDivisionError)


async def test_work_that_a_busy_loop_does_not_come_to_is_not_done_later():
    calls = LoopCalls(asyncio.get_running_loop(), timeout_seconds=0.05)
    done: list[str] = []
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(elsewhere(calls, lambda: done.append("late"))))
    thread.start()
    while thread.is_alive():
        time.sleep(0.01)  # noqa: ASYNC251  the loop is busy
    await asyncio.sleep(0.01)
    (error,) = found
    assert isinstance(error, AdminError)
    assert (error.status, error.kind) == (503, "Unavailable")
    assert done == []


async def test_coroutine_runs_on_the_loop_and_is_cancelled_when_it_takes_too_long():
    calls = LoopCalls(asyncio.get_running_loop(), timeout_seconds=0.05)
    cancelled = asyncio.Event()

    async def name_of_thread() -> str:
        return threading.current_thread().name

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def asked(work: Callable[[], Coroutine[None, None, object]]) -> object:
        return asyncio.run(calls.ask(work))

    assert await asyncio.to_thread(asked, name_of_thread) == threading.current_thread().name
    with pytest.raises(AdminError) as error:
        await asyncio.to_thread(asked, waits)
    assert error.value.kind == "Unavailable"
    await cancelled.wait()


def test_loop_that_has_ended_is_unavailable():
    loop = asyncio.new_event_loop()
    loop.close()
    error = elsewhere(LoopCalls(loop), lambda: None)
    assert isinstance(error, AdminError)
    assert error.kind == "Unavailable"

    async def nothing() -> None:
        """Do nothing."""

    with pytest.raises(AdminError):
        asyncio.run(LoopCalls(loop).ask(nothing))
