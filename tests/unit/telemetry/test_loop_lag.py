# SPDX-License-Identifier: Apache-2.0
"""Delays of the event loop, in the metric and in the log."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from epp.framework import Candidates, Floats, ManualClock, Request, Scorer
from epp.telemetry.metrics import Metrics
from epp.telemetry.plugin_metrics import LoopLag
from tests.support.waiting import until


class Slow(Scorer):
    plugin_type = "slow"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        raise NotImplementedError


class Lag:
    """The metric, and the task that feeds it."""

    def __init__(self) -> None:
        self.metrics = Metrics("pool", ManualClock())
        self.lag = LoopLag(self.metrics.families, self.metrics.slowest_call)
        self.task: asyncio.Task[None] | None = None

    def follow(self, log_seconds: float) -> None:
        self.task = asyncio.create_task(self.lag.follow(log_seconds))

    def value(self, suffix: str) -> float:
        return self.metrics.registry.get_sample_value(f"llm_d_epp_event_loop_lag_seconds_{suffix}")

    async def block(self, seconds: float, in_plugin: float = 0.0) -> None:
        """Block the event loop, for a part of the time in a call of a plugin; wait for the measurement after it."""
        await self.next()
        self.metrics.plugin_called(Scorer.role, Slow(), in_plugin)
        time.sleep(seconds)  # noqa: ASYNC251  this is the delay
        await self.next()

    async def next(self) -> None:
        """Wait for the next measurement."""
        count = self.value("count")
        await until(lambda: self.value("count") > count, "the delay is measured")


@pytest.fixture
async def lag() -> AsyncIterator[Lag]:
    lag = Lag()
    yield lag
    if lag.task is not None:
        lag.task.cancel()


async def test_blocked_loop_shows_in_the_metric(lag):
    lag.follow(0.0)
    await lag.next()
    before = lag.value("sum")
    assert before >= 0
    await lag.block(0.5)
    assert lag.value("sum") - before > 0.3  # the timer was due within the first 0.1 s of them


async def test_long_delay_is_logged_with_the_plugin_that_took_most_of_it(lag):
    lag.follow(0.25)
    with capture_logs() as lines:
        await lag.block(0.5, in_plugin=0.45)
        await lag.block(0.5)  # no second line within ten seconds
    (line,) = [line for line in lines if line["event"] == "event loop delayed"]
    assert (line["plugin"], line["plugin_seconds"]) == ("slow", 0.45)
    assert line["seconds"] > 0.3


async def test_short_call_of_a_plugin_is_not_named(lag):
    lag.follow(0.25)
    with capture_logs() as lines:
        await lag.block(0.5, in_plugin=0.05)
    (line,) = [line for line in lines if line["event"] == "event loop delayed"]
    assert "plugin" not in line
