# SPDX-License-Identifier: Apache-2.0
"""Waiting until no stream was open for a while."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from epp.extproc.open_streams import OpenStreams

FOR_EVER = 3600.0


@contextmanager
def one(streams: OpenStreams) -> Iterator[None]:
    """Have a stream open for as long as the block lasts."""
    streams.opened()
    yield
    streams.closed()


async def others() -> None:
    """Let every other task run until it waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_quiet_waits_for_every_open_stream():
    streams = OpenStreams()
    with one(streams):
        with one(streams):
            leaving = asyncio.create_task(streams.quiet(0))
            await others()
            assert streams.count == 2
        await others()
        assert not leaving.done()
    await leaving
    assert streams.count == 0


async def test_stream_that_comes_as_the_last_one_goes_is_waited_for():
    streams = OpenStreams()
    with one(streams):
        leaving = asyncio.create_task(streams.quiet(0))
        await others()
    with one(streams):  # before the other task has seen that there was none
        await others()
        assert not leaving.done()
    await leaving


async def test_stream_that_comes_in_the_quiet_period_starts_it_anew(monkeypatch):
    streams = OpenStreams()
    loop = asyncio.get_running_loop()
    started = loop.time()
    elapsed = 0.0
    monkeypatch.setattr(loop, "time", lambda: started + elapsed)
    leaving = asyncio.create_task(streams.quiet(10.0))
    await others()
    elapsed = 9.0
    with one(streams):
        await others()
    await others()
    elapsed = 18.0  # 9 after the stream that came
    await others()
    assert not leaving.done()
    elapsed = 20.0
    await leaving
