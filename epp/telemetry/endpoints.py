# SPDX-License-Identifier: Apache-2.0
"""Reports of the state of all endpoints: a table on a terminal or a log line, at the start and after changes."""

import asyncio
import contextlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import structlog
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.framework.datalayer import Contact, Unresolved
from epp.framework.endpoint import Endpoint
from epp.framework.messages import listed
from epp.framework.plugin import Plugin
from epp.framework.snapshot import ACCELERATOR, Snapshot
from epp.pool.collectors.polling.conditions import Condition, Conditions
from epp.routing.outliers.outlier_detector import OutlierDetector

MAX_ROWS = 20
_MAX_CHARACTERS = 300
_DEFAULT_NAMESPACE = "default/"
_FIRST_CHECKS = 40
"""Most checks for the first answers of all endpoints; silent endpoints are detected after 3 s."""
_CHECK_SECONDS = 0.1
_SHORTEST_GAP_SECONDS = 1.0
_LONGEST_GAP_SECONDS = 30.0
"""Time between a change and its report, in which further changes are collected; it doubles with each report."""
_QUIET_SECONDS = 60.0
_UNRESOLVED_CHECK_SECONDS = 2.0
_STDERR = 2
_IMPERFECT = frozenset({Contact.READ_IN_PART, Contact.NO_PAGE, Contact.FAILING})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EndpointState:
    name: str
    address: str
    """Human-readable address: a URL for HTTPS, the host name if one was given."""
    contact: Contact
    used: bool
    why: str
    remedy: str

    @property
    def needs_attention(self) -> bool:
        return not self.used or self.contact in _IMPERFECT

    def as_fields(self) -> Mapping[str, object]:
        """Return the fields for logs and `/healthz`."""
        shown = {"endpoint": self.name, "address": self.address, "used": self.used, "why": self.why}
        return {**shown, "remedy": self.remedy or None}


def endpoint_states(
    known: Iterable[tuple[Endpoint, Condition]],
    unresolved: Iterable[Unresolved],
    ejected: Mapping[str, Condition] = MappingProxyType({}),
) -> list[EndpointState]:
    """Return the states of the endpoints of a pool, then of the endpoints without an address.

    The conditions in `ejected`, by id, replace those of endpoints that would otherwise be used.
    """
    states = [
        EndpointState(
            _name(endpoint.id),
            _address(endpoint),
            condition.contact,
            condition.used,
            _printable(condition.why or condition.contact),
            _printable(condition.remedy),
        )
        for endpoint, asked in known
        for condition in (ejected.get(endpoint.id, asked) if asked.used else asked,)
    ]
    return states + [
        EndpointState(
            _name(one.id),
            one.host,
            Contact.UNRESOLVED,
            used=False,
            why=_printable(f"the name {one.host} has no address: {one.reason}"),
            remedy="correct the name, or write an IP address; the lookup is repeated",
        )
        for one in unresolved
    ]


class EndpointReport:
    """Reports all endpoints after the first polls and after changes; changes are collected."""

    def __init__(
        self,
        conditions: Conditions,
        unresolved: Callable[[], Sequence[Unresolved]],
        terminal: io.TextIOBase | None,
        *,
        outliers: OutlierDetector | None = None,
    ) -> None:
        self._conditions = conditions
        self._unresolved = unresolved
        self._terminal = terminal
        self._changed = asyncio.Event()
        self._reported: dict[str, Contact] = {}
        conditions.subscribe(self._changed.set)
        self._outliers = outliers
        if outliers is not None:
            outliers.subscribe(self._changed.set)

    @property
    def states(self) -> list[EndpointState]:
        """The states of all endpoints; may be read in any thread."""
        return endpoint_states(self._conditions.all, self._unresolved(), self._ejected())

    def _ejected(self) -> Mapping[str, Condition]:
        """Return the conditions of endpoints whose requests fail; may be called in any thread."""
        outliers = self._outliers
        if outliers is None or not outliers.ejected:
            return {}
        now, remedy = outliers.now, "look at the server's log"
        failing = {name: Condition(Contact.FAILING, why, remedy) for name, why in outliers.failing.items()}
        return failing | {
            each.endpoint.id: Condition(Contact.EJECTED, each.why(now), remedy) for each in outliers.ejected
        }

    async def follow(self) -> None:
        """Report at the start and after changes, until cancelled."""
        loop = asyncio.get_running_loop()
        await self._wait_for_first_answers()
        gap, reported_at = _SHORTEST_GAP_SECONDS, loop.time()
        while True:
            self._changed.clear()
            if await asyncio.to_thread(self.report):  # slow for thousands of endpoints
                reported_at = loop.time()
            await self._wait_for_change()
            gap = _SHORTEST_GAP_SECONDS if loop.time() - reported_at > _QUIET_SECONDS else gap
            await asyncio.sleep(gap)
            gap = min(2 * gap, _LONGEST_GAP_SECONDS)

    def report(self) -> bool:
        """Report all endpoints if one has changed since the last report; return whether one has."""
        states = self.states
        contacts = {state.name: state.contact for state in states}
        if contacts == self._reported:
            return False
        self._reported = contacts
        if self._terminal is not None:
            self._terminal.write(as_text(states, _terminal_width()))
            return True
        attention = [state for state in states if state.needs_attention]
        log = _log.warning if attention else _log.info
        log(
            "endpoints",
            total=len(states),
            used=sum(state.used for state in states),
            attention=[state.as_fields() for state in attention[:MAX_ROWS]],
            attention_not_shown=max(len(attention) - MAX_ROWS, 0),
        )
        return True

    async def _wait_for_change(self) -> None:
        """Wait for a change of a condition, or of the endpoints without an address, which are polled."""
        while not self._changed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNRESOLVED_CHECK_SECONDS):
                    await self._changed.wait()
            reported = {name for name, contact in self._reported.items() if contact is Contact.UNRESOLVED}
            if reported != {_name(one.id) for one in self._unresolved()}:
                return

    async def _wait_for_first_answers(self) -> None:
        for _ in range(_FIRST_CHECKS):  # a timeout could expire while the process is busy starting
            await asyncio.sleep(_CHECK_SECONDS)
            if all(condition.contact is not Contact.NOT_ASKED for _, condition in self._conditions.all):
                return


def _name(identity: str) -> str:
    return identity.removeprefix(_DEFAULT_NAMESPACE)


def _address(endpoint: Endpoint) -> str:
    place = f"{endpoint.host}:{endpoint.port}" if endpoint.host else endpoint.hostport
    return f"https://{place}" if endpoint.tls else place


def _printable(text: str) -> str:
    """Return a text for a terminal, without the control characters that a server may have sent."""
    text = text[:_MAX_CHARACTERS]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _terminal_width() -> int:
    try:
        return os.get_terminal_size(_STDERR).columns
    except OSError:
        return 80


def as_text(states: Sequence[EndpointState], width: int) -> str:
    """Return a table for a terminal of that width; for a large pool, it only has endpoints that need attention."""
    shown = states if len(states) <= MAX_ROWS else [state for state in states if state.needs_attention][:MAX_ROWS]
    used = sum(state.used for state in states)
    table = Table(
        title=f"endpoints: {used} of {len(states)} used", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("endpoint", overflow="fold", max_width=max(width * 2 // 5, 12))
    table.add_column("used", no_wrap=True)
    table.add_column("why, and what to do", overflow="fold")
    for state in shown:
        name = state.name if state.name == state.address else f"{state.name}\n{state.address}"
        style = "" if not state.needs_attention else "yellow" if state.used else "red"
        why = f"{state.why}\n-> {state.remedy}" if state.remedy else state.why
        cells = (name, "yes" if state.used else "no", why)
        table.add_row(*map(Text, cells), style=style)
    left_out = [state for state in states if state not in shown]
    if left_out:
        more = sum(state.needs_attention for state in left_out)
        table.caption = f"and {len(left_out)} more, {more} of them need attention"
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, emoji=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


REMEDY = (
    "name a file of prices in the parameter prices of accelerator-data-source, or write costPerHour for the endpoint, "
    "or cost into its AcceleratorClass"
)
_NAMES_SHOWN = 10


class Prices(NamedTuple):
    """The endpoints without a price, except those on CPUs."""

    missing: tuple[str, ...] = ()
    """Their ids."""
    any_known: bool = True
    """Whether any endpoint has a price."""

    @property
    def names(self) -> str:
        """The ids of the first ten as text."""
        return listed(self.missing, _NAMES_SHOWN)


def prices_of(snapshot: Snapshot) -> Prices:
    tags = snapshot.records(ACCELERATOR)
    slots = snapshot.slots[tags.derive_mask(_lacks_price)[snapshot.slots]].tolist()
    missing = tuple(endpoint.id for slot in slots if (endpoint := snapshot.endpoints.values[slot]) is not None)
    return Prices(missing, not missing or bool(tags.derive_mask(_has_price)[snapshot.slots].any()))


def count_unpriced(snapshot: Snapshot) -> int:
    return int(np.count_nonzero(snapshot.records(ACCELERATOR).derive_mask(_lacks_price)[snapshot.slots]))


class PriceWatch:
    """Logs plugins that lack prices and the endpoints without a price, after each change."""

    def __init__(self) -> None:
        self._users: tuple[str, ...] = ()
        self._before = Prices()

    def check(self, snapshot: Snapshot, plugins: Iterable[Plugin[Any]]) -> None:
        effects = {plugin.name: plugin.without_prices for plugin in plugins if plugin.without_prices}
        if tuple(effects) != self._users:
            self._users, self._before = tuple(effects), Prices()
        if not effects or not len(snapshot.slots):
            return
        before, now = self._before, prices_of(snapshot)
        self._before = now
        if not now.missing:
            if before.missing:
                _log.info("all endpoints have a price")
        elif not now.any_known:
            if before.any_known:
                for name, effect in effects.items():
                    _log.warning("no endpoint has a price", plugin=name, effect=effect, remedy=REMEDY)
        elif not before.any_known or not set(before.missing).issuperset(now.missing):
            _log.warning(
                "endpoints without a price",
                total=len(now.missing),
                endpoints=list(now.missing[:_NAMES_SHOWN]),
                plugins=list(effects),
                remedy=REMEDY,
            )


def _has_price(tag: AcceleratorTag) -> bool:
    cost = tag.cost
    return tag.cost_per_hour() is not None or cost.per_million_tokens is not None or bool(cost.tier)


def _lacks_price(tag: AcceleratorTag) -> bool:
    return tag.kind is not AcceleratorKind.CPU and not _has_price(tag)
