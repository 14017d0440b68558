# SPDX-License-Identifier: Apache-2.0
"""What each tenant sends and gets, as a table for terminals, and as one plain line."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.markup import escape
from rich.table import Table

from epp.admission.flow_control import Outcome
from epp.framework import Clock, Request, SchedulingResult
from epp.framework.messages import printable
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing

_RECENT_SECONDS = 10.0
_MOST_TENANTS = 8
"""Of other names nothing is shown: clients choose them."""
_MOST_LABEL = 24
_UNKNOWN = "-"


class Recent:
    """Durations of what ended in the last ten seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: deque[tuple[float, float]] = deque(maxlen=1000)

    def add(self, seconds: float) -> None:
        """Add one that ends now."""
        self._found.append((self._clock.now(), seconds))

    def __str__(self) -> str:
        """Return their mean."""
        while self._found and self._found[0][0] < self._clock.now() - _RECENT_SECONDS:
            self._found.popleft()
        if not self._found:
            return _UNKNOWN
        return f"{sum(seconds for _, seconds in self._found) / len(self._found):.2f} s"


@dataclass(slots=True)
class TenantRow:
    """One tenant."""

    name: str
    waits: Recent
    """Time in the queue of what went to a server."""
    answers: Recent
    """Time from a request to the end of its answer."""
    answered: int = 0
    refused: int = 0
    under_way: int = 0
    """Requests at servers."""
    waiting: set[int] = field(default_factory=set)
    """Requests that wait."""

    @property
    def sent(self) -> int:
        """All of its requests."""
        return self.answered + self.refused + self.under_way + len(self.waiting)

    def cells(self) -> tuple[str, ...]:
        """Return numbers as they are shown, without the name."""
        counts = (self.sent, self.answered, self.under_way, len(self.waiting), self.refused)
        return (*map(str, counts), str(self.waits), str(self.answers))


_HEADINGS = ("sent", "answered", "at\nservers", "waiting", "refused", "time in\nqueue", "time to\nanswer")


class Tenants(DirectorObserver):
    """Counts the requests of each tenant: of those given, and of a few others that come."""

    def __init__(self, clock: Clock, names: Sequence[str]) -> None:
        self._clock = clock
        self._rows: dict[str, TenantRow] = {}
        for name in names:
            self._add(name)

    @property
    def rows(self) -> Sequence[TenantRow]:
        """Return one for each tenant."""
        return tuple(self._rows.values())

    def queued(self, request: Request) -> None:
        """Count a request that begins to wait."""
        if (row := self._row(request)) is not None:
            row.waiting.add(id(request))

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Count a request that waits no longer."""
        if (row := self._row(request)) is not None:
            row.waiting.discard(id(request))
            if outcome is Outcome.DISPATCHED:
                row.waits.add(seconds)

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:  # noqa: ARG002  where it goes
        """Count a request that goes to a server."""
        if (row := self._row(request)) is not None:
            row.under_way += 1

    def completed(self, routing: Routing, cause: Cause) -> None:  # noqa: ARG002  however it ends
        """Count a request that a server has answered."""
        if (row := self._row(routing.request)) is not None:
            row.under_way -= 1
            row.answered += 1
            row.answers.add(self._clock.now() - routing.request.received_at)

    def refused(self, refusal: Refusal) -> None:
        """Count a request that no server gets."""
        if refusal.request is not None and (row := self._row(refusal.request)) is not None:
            row.refused += 1

    def table(self) -> Table:
        """Return the table for a terminal."""
        result = Table(title="tenants", title_justify="left", box=None, padding=(0, 2, 0, 0))
        result.add_column("tenant", overflow="fold")
        for heading in _HEADINGS:
            result.add_column(heading, justify="right", overflow="fold")
        for row in self.rows:
            result.add_row(f"[bold]{escape(printable(row.name, _MOST_LABEL))}[/]", *row.cells())
        return result

    def line(self) -> str:
        """Return one line about all tenants."""
        titles = [heading.replace("\n", " ") for heading in _HEADINGS]
        told = [
            " ".join(f"{title} {cell}" for title, cell in zip(titles, row.cells(), strict=True)) for row in self.rows
        ]
        return " | ".join(
            f"{printable(row.name, _MOST_LABEL)} {text}" for row, text in zip(self.rows, told, strict=True)
        )

    def _row(self, request: Request) -> TenantRow | None:
        row = self._rows.get(request.fairness_id)
        return self._add(request.fairness_id) if row is None and len(self._rows) < _MOST_TENANTS else row

    def _add(self, name: str) -> TenantRow:
        self._rows[name] = row = TenantRow(name, Recent(self._clock), Recent(self._clock))
        return row
