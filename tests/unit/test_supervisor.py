# SPDX-License-Identifier: Apache-2.0
"""Background tasks that fail are restarted, counted and listed."""

import asyncio

import pytest

from epp.runtime.supervisor import Supervisor, TaskObserver, first_of
from tests.support.waiting import until


class Counting(TaskObserver):
    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    def task_failed(self, kind: str, error: Exception) -> None:
        self.failed.append((kind, str(error)))


@pytest.fixture
def observer() -> Counting:
    return Counting()


@pytest.fixture
async def supervisor(observer):
    supervisor = Supervisor(observer=observer)
    yield supervisor
    await supervisor.stop()


async def test_task_that_raises_is_restarted_and_counted_and_listed_by_name(supervisor, observer):
    runs, third = [], asyncio.Event()

    async def work():
        runs.append(len(runs))
        if len(runs) < 3:
            raise OSError(f"try {len(runs)}")
        third.set()
        await asyncio.Event().wait()

    supervisor.start("discovery", work, name="discovery of a")
    async with asyncio.timeout(10):
        await third.wait()
    assert observer.failed == [("discovery", "try 1"), ("discovery", "try 2")]
    assert supervisor.failing == {"discovery of a": "OSError: try 2"}


async def test_task_that_returns_has_ended(supervisor):
    async def work():
        """Nothing to do."""

    await asyncio.wait_for(supervisor.start("tagger", work), 10)
    assert (len(supervisor.tasks), supervisor.failing) == (0, {})


async def test_cancelled_task_is_not_restarted_and_leaves_no_failure(supervisor):
    failed = asyncio.Event()

    async def work():
        failed.set()
        raise RuntimeError("boom")

    task = supervisor.start("collect", work)
    async with asyncio.timeout(10):
        await failed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (len(supervisor.tasks), supervisor.failing) == (0, {})


async def test_failure_is_forgotten_once_the_task_has_run_for_a_while(supervisor, monkeypatch):
    monkeypatch.setattr("epp.runtime.supervisor._RECOVERED_SECONDS", 0.05)
    runs = []

    async def work():
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("boom")
        await asyncio.Event().wait()

    supervisor.start("collect", work)
    await until(lambda: len(runs) == 2, "the task has been restarted")
    await until(lambda: not supervisor.failing, "the failure is forgotten")


async def test_stop_ends_all_tasks():
    supervisor = Supervisor()
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    for number in range(3):
        supervisor.start("collect", work, name=str(number))
    await asyncio.sleep(0)
    await supervisor.stop()
    assert (len(ended), len(supervisor.tasks)) == (3, 0)


async def test_task_that_fails_as_it_is_cancelled_ends_too(supervisor, observer):
    started, runs = asyncio.Event(), []

    async def work():
        runs.append(1)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("boom")

    supervisor.start("discovery", work)
    async with asyncio.timeout(10):
        await started.wait()
        await supervisor.stop()
    assert (len(runs), len(supervisor.tasks), supervisor.failing) == (1, 0, {})
    assert observer.failed == [("discovery", "boom")]


async def test_first_of_several_waits_ends_them_all():
    never = asyncio.Event()
    assert await first_of(asyncio.sleep(0), never.wait())
    assert not await first_of(never.wait(), asyncio.sleep(0))
    assert not await first_of(never.wait(), most_seconds=0)
    assert len(asyncio.all_tasks()) == 1


async def test_wait_that_fails_first_is_heard():
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await first_of(asyncio.Event().wait(), fail())
