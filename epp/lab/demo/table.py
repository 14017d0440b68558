# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a pool and the last request, for terminals and as plain lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

from rich.markup import escape
from rich.table import Table

from epp.framework import Candidates, Snapshot
from epp.framework.accelerators.arrays import cost_per_hour
from epp.framework.snapshot import (
    ACCELERATOR,
    ANSWERS,
    IN_FLIGHT,
    KV_USAGE,
    PREFIX_HIT_TOKENS,
    PREFIX_QUERY_TOKENS,
    REACHABLE,
    REFUSES,
    RUNNING,
    SERVED,
    SILENT,
    WAITING,
)
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing

_UNKNOWN = "-"
_STATES = {ANSWERS: "up", SILENT: "silent", REFUSES: "unreachable"}


@dataclass(frozen=True, slots=True)
class Row:
    """One endpoint, as strings."""

    name: str
    address: str
    accelerator: str
    """Model and slice, if known."""
    dollars_per_hour: str
    waiting: str
    running: str
    kv_usage: str
    in_flight: str
    served: str
    prefix_hits: str
    """Share of prompt tokens found in the engine's prefix cache, since its start."""
    state: str
    cluster: str = ""
    """Name of its cluster; empty for the local one."""

    @property
    def title(self) -> str:
        """The name, with the cluster if there is one."""
        return f"{self.name} in {self.cluster}" if self.cluster else self.name


def rows(snapshot: Snapshot) -> Iterator[Row]:
    """Yield a row for each endpoint, by slot."""
    all_endpoints = Candidates(snapshot, snapshot.slots)
    waiting, running, usage = (all_endpoints.values(column) for column in (WAITING, RUNNING, KV_USAGE))
    in_flight, served, reachable = (all_endpoints.values(column) for column in (IN_FLIGHT, SERVED, REACHABLE))
    hits, queries = all_endpoints.values(PREFIX_HIT_TOKENS), all_endpoints.values(PREFIX_QUERY_TOKENS)
    tags, prices = all_endpoints.records(ACCELERATOR), cost_per_hour(all_endpoints)
    for position, endpoint in enumerate(all_endpoints.endpoints):
        tag = tags[position]
        yield Row(
            endpoint.name,
            endpoint.hostport,
            f"{tag.model.upper()} {tag.partition.profile}".strip() or _UNKNOWN,
            _UNKNOWN if isnan(prices[position]) else f"{prices[position]:.2f}",
            _count(waiting[position]),
            _count(running[position]),
            _percent(usage[position]),
            _count(in_flight[position]),
            _count(served[position]),
            _percent(hits[position] / queries[position] if queries[position] > 0 else float("nan")),
            _STATES.get(float(reachable[position]), ""),
            endpoint.cluster,
        )


def table(snapshot: Snapshot, caption: str = "") -> Table:
    """Return the table for a terminal, with a line below it."""
    result = Table(
        title="endpoints",
        title_justify="left",
        caption=escape(caption),
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        expand=True,
    )
    found = tuple(rows(snapshot))
    clusters = any(row.cluster for row in found)
    result.add_column("endpoint", overflow="fold")
    if clusters:
        result.add_column("cluster", overflow="fold")
    result.add_column("accelerator", overflow="fold")
    for heading in ("$/h", "wait", "run", "KV", "in\nflight", "served", "prefix\nhits"):  # all fit into 80 columns
        result.add_column(heading, justify="right", overflow="fold")
    result.add_column("state", overflow="fold")
    for row in found:
        result.add_row(
            f"[bold]{escape(row.name)}[/]\n[dim]{escape(row.address)}[/]",
            *((escape(row.cluster),) if clusters else ()),
            row.accelerator,
            row.dollars_per_hour,
            row.waiting,
            row.running,
            row.kv_usage,
            row.in_flight,
            row.served,
            row.prefix_hits,
            row.state,
            style=None if row.state == "up" else "red",
        )
    return result


def line(snapshot: Snapshot) -> str:
    return " | ".join(
        f"{row.title} {row.state}: waiting {row.waiting} running {row.running} KV {row.kv_usage} "
        f"served {row.served} prefix hits {row.prefix_hits}"
        for row in rows(snapshot)
    )


def _count(value: float) -> str:
    return _UNKNOWN if isnan(value) else f"{value:.0f}"


def _percent(share: float) -> str:
    return _UNKNOWN if isnan(share) else f"{share:.0%}"


class LastRequest(DirectorObserver):
    """Keeps the last request; formats it on demand."""

    def __init__(self) -> None:
        self._last: Routing | Refusal | None = None

    def completed(self, routing: Routing, cause: Cause) -> None:  # noqa: ARG002
        self._last = routing

    def refused(self, refusal: Refusal) -> None:
        self._last = refusal

    @property
    def text(self) -> str:
        """The endpoint and the reason, on one line."""
        last = self._last
        if last is None:
            return "last request: none yet"
        if isinstance(last, Refusal):
            return f"last request: refused with {last.error.status}, {last.error.detail or last.error.message}"
        return f"last request: {last.served.name}, {last.decision.why(last.served)}"
