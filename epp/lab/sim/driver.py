# SPDX-License-Identifier: Apache-2.0
"""The machine in real time: moved by the event loop's clock, with a queue of tokens for each request."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from epp.lab.sim.machine import Emission, Machine, Occupation, SimRequest
from epp.lab.sim.metrics import SimMetrics
from epp.lab.sim.profile import SimProfile

Emissions = asyncio.Queue[Emission]


class Driver:
    """Owns a machine and moves it in the running event loop, in Unix time; everything else only reads the machine.

    Late wake-ups do not add up: steps that are overdue happen at the times they were due.
    """

    def __init__(self, profile: SimProfile) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoch = time.time() - self._loop.time()
        self.metrics = SimMetrics(profile)
        self.machine = Machine(profile, now=self._now(), observer=self.metrics)
        self._queues: dict[int, Emissions] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def submitted(self, request: SimRequest) -> Iterator[Emissions]:
        """Run a request and yield the queue of its tokens; leaving before the last one aborts it.

        Raises the errors of `Machine.submit`.
        """
        emissions = Emissions()
        self._advance()
        self.machine.submit(request)
        self._queues[request.request_id] = emissions
        self._idle.clear()
        self._schedule()
        try:
            yield emissions
        finally:
            self._advance()
            self.machine.abort(request.request_id)
            del self._queues[request.request_id]
            if not self._queues:
                self._idle.set()
            self._schedule()

    def occupy(self, occupation: Occupation) -> None:
        """Replace the synthetic load; raises the errors of `Machine.occupy`."""
        self._advance()
        self.machine.occupy(occupation)
        self._schedule()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """End every request in flight with finish reason `abort`."""
        self._advance()
        for request_id, emissions in self._queues.items():
            emission = self.machine.abort(request_id)
            if emission is not None:
                emissions.put_nowait(emission)
        self._schedule()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> float:
        return self._loop.time() + self._epoch

    def _advance(self) -> None:
        for emission in self.machine.advance(self._now()):
            self._queues[emission.request_id].put_nowait(emission)

    def _schedule(self) -> None:
        self.close()
        due = self.machine.next_event_at
        self._timer = None if due is None else self._loop.call_at(due - self._epoch, self._tick)

    def _tick(self) -> None:
        self._advance()
        self._schedule()
