"""Real time for the machine: runs it on the event loop's clock and hands its tokens to whoever waits for them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from epp.sim.machine import Machine
from epp.sim.records import Emission, Occupation, SimRequest

__all__ = ["Driver", "Emissions"]

Emissions = asyncio.Queue[Emission]


class Driver:
    """Owns a machine and moves it in the running event loop; everything else only reads the machine.

    Late wake-ups do not add up: steps that are overdue happen at the times they were due.
    """

    def __init__(self, make_machine: Callable[[float], Machine]) -> None:
        self._loop = asyncio.get_running_loop()
        self.machine = make_machine(self._loop.time())
        self._streams: dict[int, Emissions] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def submitted(self, request: SimRequest) -> Iterator[Emissions]:
        """Run a request and give the queue of its tokens; leaving before the last one aborts it.

        Raises what `Machine.submit` raises.
        """
        emissions = Emissions()
        self._advance()
        self.machine.submit(request)
        self._streams[request.request_id] = emissions
        self._idle.clear()
        self._arm()
        try:
            yield emissions
        finally:
            self._advance()
            self.machine.abort(request.request_id)
            del self._streams[request.request_id]
            if not self._streams:
                self._idle.set()
            self._arm()

    def occupy(self, occupation: Occupation) -> None:
        """Replace the synthetic load; raises what `Machine.occupy` raises."""
        self._advance()
        self.machine.occupy(occupation)
        self._arm()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """End every request in flight with finish reason `abort`."""
        self._advance()
        for request_id, emissions in self._streams.items():
            emission = self.machine.abort(request_id)
            if emission is not None:
                emissions.put_nowait(emission)
        self._arm()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._advance()
        self._arm()

    def _advance(self) -> None:
        for emission in self.machine.advance(self._loop.time()):
            self._streams[emission.request_id].put_nowait(emission)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.machine.next_event_at
        self._timer = None if due is None else self._loop.call_at(due, self._tick)
