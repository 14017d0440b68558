# SPDX-License-Identifier: Apache-2.0
"""Polling state of one feed of one endpoint: the poll in progress and the time of the next one."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

from epp.framework.datalayer import DataSource
from epp.framework.endpoint import Endpoint
from epp.pool.collectors.polling.cadence import Cadence
from epp.pool.collectors.polling.poll import Poll
from epp.pool.collectors.polling.poll_priority import PollPriority
from epp.pool.collectors.sources.asker import Asker
from epp.pool.collectors.sources.http import HttpSource
from epp.routing.datastore import Datastore

_SHARE = 0.05
"""Of a core: an endpoint whose pages take more to read is asked less often, so that others are not."""

Done: TypeAlias = Callable[["Member", bytes | Exception], None]


class Member:
    """Begins polls and settles their outcomes, one poll at a time.

    Pages over HTTP need no task unless something goes wrong; of any other source, each fetch is one.
    """

    __slots__ = (
        "_asker", "_store", "_task", "brief", "cadence", "due", "endpoint", "gone", "least_wait", "on_end", "poll",
        "priority", "wait",
    )  # fmt: skip

    def __init__(
        self, store: Datastore, endpoint: Endpoint, poll: Poll, *, cadence: Cadence | None, brief: bool = False
    ) -> None:
        """Prepare; `cadence` is None where the interval is fixed, `brief` means that no connection is kept."""
        self._store = store
        self.endpoint = endpoint
        self.poll = poll
        self.cadence = cadence
        self.brief = brief
        self.due = 0.0
        self.wait = 0.0
        """Time between the last poll and the next one."""
        self.least_wait = 0.0
        """What it is at least, by what the last page cost, whatever happens at the endpoint."""
        self.gone = False
        self.priority = PollPriority()
        self.on_end: Callable[[], None] | None = None
        """Called when the server closes a kept connection."""
        self._asker: Asker | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def tells_reachability(self) -> bool:
        """Whether it asks the port that requests go to."""
        return self.poll.tells_reachability(self.endpoint)

    @property
    def needs_connection(self) -> bool:
        """Whether the next poll connects first."""
        if not isinstance(self.poll.source, HttpSource):
            return self.brief
        return self._asker is None or not self._asker.connected

    def begin(self, done: Done) -> None:
        """Begin a poll, and call `done` with its outcome, never before this returns."""
        source = self.poll.source
        if isinstance(source, HttpSource):
            asker = self._asker
            if asker is None or asker.attempt.endpoint.host != self.endpoint.host:
                if asker is not None:
                    asker.close()
                self._asker = asker = source.asker(self.endpoint, self.poll.sieve)
                asker.on_end = self.on_end
            asker.ask(lambda outcome: done(self, outcome))
        else:
            name = f"collect {source.name} of {self.endpoint.id}"
            self._task = asyncio.get_running_loop().create_task(self._fetch(source, done), name=name)

    def settle(self, outcome: bytes | Exception, delay_seconds: float, now: float) -> None:
        """Report the outcome, and set the time until the next poll."""
        wait = self.poll.settle(self.endpoint, outcome, delay_seconds)
        cadence = self.cadence
        if cadence is not None:
            if self.poll.changed or self._store.in_flight(self.endpoint.id):
                cadence.event(now)
            wait = max(wait, cadence.interval(now))
        if self._asker is not None:
            self.least_wait = self._asker.seconds / _SHARE
        self.wait = max(wait, self.least_wait)
        self.priority.settled(outcome)

    def end(self) -> Iterator[asyncio.Task[None]]:
        """Give up what is under way and close the connection; yield tasks that are about to end."""
        self.gone = True
        self.priority.end()
        asker, self._asker = self._asker, None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            yield task
        if asker is not None and (asking := asker.close()) is not None:
            yield asking

    async def _fetch(self, source: DataSource, done: Done) -> None:
        outcome: bytes | Exception
        try:
            outcome = await source.fetch(self.endpoint)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; other feeds continue
            outcome = error
        self._task = None
        done(self, outcome)
