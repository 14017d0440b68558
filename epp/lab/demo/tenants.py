# SPDX-License-Identifier: Apache-2.0
"""The demo of two tenants: one of them floods the shared servers, and a table counts the requests of both."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import aiohttp
from rich.markup import escape
from rich.table import Table

from epp.admission.flow_control.settings import Outcome
from epp.framework import Clock, Request, SchedulingResult
from epp.framework.headers import FAIRNESS_ID
from epp.framework.messages import printable
from epp.lab.demo.servers import ServerSpec
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing

STEADY, FLOOD = "steady", "flood"
SERVERS = (ServerSpec("t4", "t4-1"), ServerSpec("t4", "t4-2"))
_STEADY_RATE = 1.0
"""Requests per second of a tenant that does not flood the servers."""
_OUTPUT_TOKENS = 48
_HEADER, _ = FAIRNESS_ID
FAIR_QUEUES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 4}}
- {type: round-robin-fairness-policy}
- {type: active-request-scorer}
- {type: accelerator-data-source}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 3s
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}
"""
"""Configuration with fair queues for the tenants, and four concurrent requests per server."""
_RECENT_SECONDS = 10.0
_MOST_TENANTS = 8
"""Maximum number of tenants in the table; clients choose their names."""
_MOST_LABEL = 24
_UNKNOWN = "-"
_HEADINGS = ("sent", "answered", "at\nservers", "waiting", "refused", "time in\nqueue", "time to\nanswer")


class Phase(Enum):
    CALM = "both tenants send few requests: the servers have room"
    FLOODED = "flood sends more than the servers can serve: its own requests wait, and get 429 after 3 s"


class TwoTenants:
    """Clients of both tenants; together they send at most `requests_per_second`, and do not wait for answers."""

    def __init__(self, url: str, model: str, requests_per_second: float) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._steady = min(_STEADY_RATE, requests_per_second / 2)
        self._flood = requests_per_second - self._steady
        self.phase = Phase.CALM

    async def run(self, phase_seconds: float) -> None:
        """Send requests and repeat the phases until cancelled."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as clients,
        ):
            for tenant in (STEADY, FLOOD):
                clients.create_task(self._send(session, tenant, clients))
            for phase in itertools.cycle(Phase):
                self.phase = phase
                await asyncio.sleep(phase_seconds)

    async def _send(self, session: aiohttp.ClientSession, tenant: str, clients: asyncio.TaskGroup) -> None:
        generator = random.Random(tenant)  # noqa: S311  not for secrets
        for number in itertools.count():
            clients.create_task(self._ask(session, tenant, number))
            rate = self._flood if tenant == FLOOD and self.phase is Phase.FLOODED else self._steady
            await asyncio.sleep(generator.uniform(0.5, 1.5) / rate)

    async def _ask(self, session: aiohttp.ClientSession, tenant: str, number: int) -> None:
        """Send a request and ignore the result; the table shows it."""
        messages = [{"role": "user", "content": f"{tenant} {number}: where is my parcel?"}]
        body = {"model": self._model, "messages": messages, "max_tokens": _OUTPUT_TOKENS}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(self._url, json=body, headers={_HEADER: tenant}) as response:
                await response.read()


class Recent:
    """Durations that ended in the last ten seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: deque[tuple[float, float]] = deque(maxlen=1000)

    def add(self, seconds: float) -> None:
        self._found.append((self._clock.now(), seconds))

    def __str__(self) -> str:
        while self._found and self._found[0][0] < self._clock.now() - _RECENT_SECONDS:
            self._found.popleft()
        if not self._found:
            return _UNKNOWN
        return f"{sum(seconds for _, seconds in self._found) / len(self._found):.2f} s"


@dataclass(slots=True)
class TenantRow:
    name: str
    waits: Recent
    """Queueing time of routed requests."""
    answers: Recent
    """Time from a request to the end of its answer."""
    answered: int = 0
    refused: int = 0
    under_way: int = 0
    """Requests at servers."""
    waiting: set[int] = field(default_factory=set)

    @property
    def sent(self) -> int:
        return self.answered + self.refused + self.under_way + len(self.waiting)

    def cells(self) -> tuple[str, ...]:
        counts = (self.sent, self.answered, self.under_way, len(self.waiting), self.refused)
        return (*map(str, counts), str(self.waits), str(self.answers))


class Tenants(DirectorObserver):
    """Counts the requests of the given tenants and of a few others."""

    def __init__(self, clock: Clock, names: Sequence[str]) -> None:
        self._clock = clock
        self._rows: dict[str, TenantRow] = {}
        for name in names:
            self._add(name)

    @property
    def rows(self) -> Sequence[TenantRow]:
        return tuple(self._rows.values())

    def queued(self, request: Request) -> None:
        if (row := self._row(request)) is not None:
            row.waiting.add(id(request))

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        if (row := self._row(request)) is not None:
            row.waiting.discard(id(request))
            if outcome is Outcome.DISPATCHED:
                row.waits.add(seconds)

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:  # noqa: ARG002
        if (row := self._row(request)) is not None:
            row.under_way += 1

    def completed(self, routing: Routing, cause: Cause) -> None:  # noqa: ARG002
        if (row := self._row(routing.request)) is not None:
            row.under_way -= 1
            row.answered += 1
            row.answers.add(self._clock.now() - routing.request.received_at)

    def refused(self, refusal: Refusal) -> None:
        if refusal.request is not None and (row := self._row(refusal.request)) is not None:
            row.refused += 1

    def table(self) -> Table:
        result = Table(title="tenants", title_justify="left", box=None, padding=(0, 2, 0, 0))
        result.add_column("tenant", overflow="fold")
        for heading in _HEADINGS:
            result.add_column(heading, justify="right", overflow="fold")
        for row in self.rows:
            result.add_row(f"[bold]{escape(printable(row.name, _MOST_LABEL))}[/]", *row.cells())
        return result

    def line(self) -> str:
        titles = [heading.replace("\n", " ") for heading in _HEADINGS]
        shown = []
        for row in self.rows:
            cells = (f"{title} {cell}" for title, cell in zip(titles, row.cells(), strict=True))
            shown.append(" ".join((printable(row.name, _MOST_LABEL), *cells)))
        return " | ".join(shown)

    def _row(self, request: Request) -> TenantRow | None:
        row = self._rows.get(request.fairness_id)
        return self._add(request.fairness_id) if row is None and len(self._rows) < _MOST_TENANTS else row

    def _add(self, name: str) -> TenantRow:
        self._rows[name] = row = TenantRow(name, Recent(self._clock), Recent(self._clock))
        return row
