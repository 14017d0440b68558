# SPDX-License-Identifier: Apache-2.0
"""A loop that is held up says so."""

import asyncio
import time

import pytest

from epp.framework import ManualClock
from epp.observability.loop_lag import follow_loop_lag
from epp.observability.metrics import Metrics


class Lag:
    """The metric, and the task that feeds it."""

    def __init__(self) -> None:
        self.metrics = Metrics("pool", ManualClock())
        self.task = asyncio.create_task(follow_loop_lag(self.metrics.loop_lagged))

    def value(self, suffix: str) -> float:
        value = self.metrics.registry.get_sample_value(f"llm_d_epp_event_loop_lag_seconds_{suffix}")
        assert value is not None
        return value

    async def next(self) -> None:
        """Wait for the next measurement."""
        count = self.value("count")
        for _ in range(1000):
            if self.value("count") > count:
                return
            await asyncio.sleep(0.01)
        pytest.fail("nothing is measured")


@pytest.mark.asyncio
async def test_blocked_loop_shows_in_the_metric():
    lag = Lag()
    await lag.next()
    before = lag.value("sum")
    time.sleep(0.5)  # noqa: ASYNC251  this is what shall be seen
    await lag.next()
    assert lag.value("sum") - before > 0.3  # the timer was due within the first 0.1 s of them
    lag.task.cancel()


@pytest.mark.asyncio
async def test_delay_is_never_negative():
    lag = Lag()
    for _ in range(3):
        await lag.next()
    assert lag.value("sum") >= 0
    lag.task.cancel()
