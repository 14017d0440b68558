# SPDX-License-Identifier: Apache-2.0
"""What holds the event loop up is named. Stalls are twenty times the threshold or more: machines are noisy."""

import asyncio
import gc
import json
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from epp.observability.stalls import Stall, StallWatchdog
from epp.observability.stalls.cpu_timer import CpuTimer
from epp.observability.stalls.stack_signal import StackSignal
from epp.observability.stalls.stall import GARBAGE, NO_CPU, UNKNOWN

pytestmark = pytest.mark.asyncio

OURS = __name__.partition(".")[0]
LONG_SECONDS = 0.4
linux = pytest.mark.skipif(sys.platform != "linux", reason="timers of CPU time are Linux's")


class Watched:
    """The running loop under a watchdog, and the stalls that it told of."""

    def __init__(self, threshold_seconds: float = 0.02) -> None:
        self.stalls: list[Stall] = []
        self.watchdog = StallWatchdog(threshold_seconds, self.stalls.append, lambda: (OURS,))

    async def until(self, test: Callable[[Stall], bool]) -> Stall:
        """Return the first stall of that kind."""
        async with asyncio.timeout(10):
            while not (found := [stall for stall in self.stalls if test(stall)]):  # noqa: ASYNC110  told by callbacks
                await asyncio.sleep(0.01)
        return found[0]


@pytest_asyncio.fixture
async def watched() -> AsyncIterator[Watched]:
    found = Watched()
    await found.watchdog.start()
    await asyncio.sleep(0)
    yield found
    await found.watchdog.stop()


def compute(seconds: float) -> None:
    """Use the CPU in Python."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(100))


def decode(text: str) -> object:
    """Use the CPU in one call that keeps the interpreter's lock."""
    return json.loads(text)


def block(seconds: float) -> None:
    """Wait for something else, as a plugin must not."""
    time.sleep(seconds)


def is_long(stall: Stall) -> bool:
    return stall.seconds >= LONG_SECONDS / 2


async def test_function_that_computes_is_named_with_its_stack(watched: Watched):
    compute(LONG_SECONDS)
    stall = await watched.until(is_long)
    assert stall.where == f"{__name__}:compute"
    assert any(line.startswith(f"{__name__}:test_function_that_computes") for line in stall.stack)


@pytest.mark.slow
async def test_caller_of_a_call_that_keeps_the_lock_is_named(watched: Watched):
    text = "[" + "[1]," * 8_000_000 + "0]"
    started = time.monotonic()
    decode(text)
    seconds = time.monotonic() - started
    stall = await watched.until(lambda stall: stall.seconds >= seconds / 2)
    if stall.where != GARBAGE:  # so many new objects are collected at times, all of them in one go
        assert stall.where == f"{__name__}:decode"


async def test_call_that_waits_is_named(watched: Watched):
    block(1.0)  # longer than the loop is left alone at rest
    stall = await watched.until(is_long)
    assert stall.where == f"{__name__}:block"


async def test_long_collection_of_garbage_is_named(watched: Watched):
    gc.disable()
    kept = [[] for _ in range(3_000_000)]  # type: list[list[object]]
    gc.enable()
    started = time.monotonic()
    gc.collect()
    seconds = time.monotonic() - started
    stall = await watched.until(lambda stall: stall.where == GARBAGE and stall.seconds > seconds / 2)
    assert stall.seconds <= seconds
    del kept


async def test_many_short_turns_are_no_stall(watched: Watched):
    until = time.thread_time() + LONG_SECONDS
    while time.thread_time() < until:
        compute(0.0005)
        await asyncio.sleep(0)
    assert not [s for s in watched.stalls if s.where.startswith(__name__) and is_long(s)]


async def test_late_timer_without_a_name_counts_and_makes_it_look_more_often(watched: Watched):
    watched.watchdog.lagged(LONG_SECONDS)
    assert [stall.where in {UNKNOWN, NO_CPU} for stall in watched.stalls] == [True]
    if watched.stalls[0].where == UNKNOWN:
        block(0.2)  # shorter than the loop is left alone at rest
        assert (await watched.until(lambda stall: stall.seconds > 0.1 and bool(stall.stack))).where.endswith(":block")


async def test_timer_that_is_late_for_less_is_no_stall(watched: Watched):
    watched.watchdog.lagged(0.019)
    assert UNKNOWN not in {stall.where for stall in watched.stalls}


async def test_nothing_is_left_of_it_as_it_stops():
    before = list(gc.callbacks)
    watched = Watched()
    await watched.watchdog.start()
    await watched.watchdog.stop()
    assert list(gc.callbacks) == before
    assert "stall watchdog" not in {thread.name for thread in threading.enumerate()}
    await watched.watchdog.stop()  # once more is nothing


async def test_loop_that_is_closed_under_it_ends_it():
    watched = Watched()

    async def work() -> None:
        await watched.watchdog.start()
        compute(0.1)

    await asyncio.to_thread(asyncio.run, work())
    compute(0.1)
    watched.watchdog.lagged(0.0)
    await watched.watchdog.stop()


@linux
async def test_timer_sends_its_signal_for_the_time_that_the_thread_computes_alone():
    seen: list[float] = []
    stack = StackSignal(lambda _: seen.append(time.thread_time()))
    clock = time.pthread_getcpuclockid(threading.get_ident())
    timer = CpuTimer(clock, threading.get_native_id(), stack.number, 0.1)
    assert timer.works
    before = time.thread_time()
    await asyncio.to_thread(compute, 0.5)
    compute(0.05)
    assert seen == []
    compute(0.45)
    timer.close()
    used = time.thread_time() - before
    assert 3 <= len(seen) <= used / 0.1
    compute(0.3)
    assert len(seen) <= used / 0.1
    stack.close()


async def test_signal_that_comes_late_ends_nothing_and_a_second_one_leaves_the_first_alone():
    first, second = StackSignal(lambda _: None), StackSignal(lambda _: None)
    assert (first.number, second.number) == (signal.SIGRTMIN + 8, 0)
    assert await asyncio.to_thread(lambda: StackSignal(lambda _: None).number) == 0
    second.close()
    first.close()
    signal.raise_signal(signal.SIGRTMIN + 8)
    third = StackSignal(lambda _: None)
    assert third.number > 0
    third.close()
