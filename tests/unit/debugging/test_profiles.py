# SPDX-License-Identifier: Apache-2.0
"""Profiles of threads, memory and tasks of this very process."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from epp.debugging import stacks
from epp.debugging.cpu import cpu_profile
from epp.debugging.heap import heap_profile
from epp.debugging.stack import MOST_CALLS, Kind, Place, Profile

NEVER = threading.Event()


@pytest.fixture
def burning() -> Iterator[None]:
    """A thread that computes, and one that waits."""
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn, name="burning"), threading.Thread(target=stop.wait, name="waiting")]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("burning")
def test_cpu_time_is_that_of_the_function_that_computes():
    profile = cpu_profile(0.5, NEVER)
    spent = {"burning": 0, "waiting": 0}
    for (stack, thread), (_, nanoseconds) in profile.samples.items():
        spent[thread] = spent.get(thread, 0) + nanoseconds
        if thread == "burning":
            assert any(place.function.endswith("burning.<locals>.burn") for place in stack)
    assert spent["waiting"] == 0
    assert 0 < spent["burning"] <= profile.nanoseconds


def test_profile_ends_where_it_is_stopped():
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    began = time.monotonic()
    cpu_profile(60, stop)
    assert time.monotonic() - began < 30


def test_memory_that_is_held_is_found_where_it_was_allocated():
    held: list[bytearray] = []
    stop = threading.Event()

    def allocate() -> None:
        held.append(bytearray(5_000_000))
        stop.set()

    threading.Timer(0.1, allocate).start()
    profile = heap_profile(60, stop)
    (stack, _), (count, size) = max(profile.samples.items(), key=lambda each: each[1][1])
    assert size >= 5_000_000
    assert stack[0].file == __file__
    assert count >= 1


async def test_task_is_shown_with_all_that_it_awaits_innermost_first():
    gate = asyncio.Event()

    async def inner() -> None:
        await gate.wait()

    async def outer() -> None:
        await inner()

    task = asyncio.create_task(outer(), name="mine")
    await asyncio.sleep(0)
    found = {each.name: each for some in stacks.tasks() for each in some}
    gate.set()
    await task
    functions = [place.function.rpartition(".")[2] for place in found["task mine"].stack]
    assert functions == ["wait", "inner", "outer"]


async def test_tasks_with_equal_stacks_are_a_group():
    gate = asyncio.Event()
    tasks = [asyncio.create_task(gate.wait()) for _ in range(250)]
    await asyncio.sleep(0)
    text = stacks.as_groups([each for some in stacks.tasks() for each in some])
    gate.set()
    await asyncio.gather(*tasks)
    assert "\n250 @\n" in text
    assert text.startswith("goroutine profile: total 25")


def test_text_is_what_flame_graphs_are_made_of():
    kind = Kind("cpu", "nanoseconds")
    profile = Profile((Kind("samples", "count"), kind), kind, 1, "thread")
    outer, inner = Place("m.outer", "m.py", 1), Place("m.inner", "m.py", 5)
    profile.add((inner, outer), "main", 1, 30)
    profile.add((inner, outer), "main", 1, 12)
    profile.add((outer,), "main", 1, 8)
    assert profile.as_text() == "main;m.outer;m.inner 42\nmain;m.outer 8\n"


def test_deep_stack_is_cut():
    def deep(left: int) -> stacks.Sequence[stacks.Running]:
        return deep(left - 1) if left else stacks.threads()

    (here,) = [each for each in deep(300) if each.stack[0].function.endswith("threads")]
    assert len(here.stack) == MOST_CALLS
