# SPDX-License-Identifier: Apache-2.0
"""What the demo counts for each tenant, and how it looks."""

import asyncio
import io

import pytest
from rich.console import Console

from epp.framework import Headers
from epp.framework.refusals import QueueTimeoutError
from epp.lab.demo.tenants import FAIR_QUEUES, Tenants
from epp.routing.director import Cause
from tests.support.exchanges import BODY, new_bench


class Shop:
    """Tenants in front of four endpoints that take four requests each."""

    def __init__(self) -> None:
        self.bench = new_bench(FAIR_QUEUES, observe=self.observer)
        self.clock = self.bench.clock

    def observer(self, clock):
        self.tenants = Tenants(clock, ("steady", "flood"))
        return self.tenants

    def ask(self, tenant: str):
        headers = Headers([(":path", "/v1/chat/completions"), ("x-llm-d-inference-fairness-id", tenant)])
        return self.bench.director.route(headers, BODY, None)

    def fill(self):
        return [self.ask("flood") for _ in range(16)]

    def cells(self, name: str) -> tuple[str, ...]:
        """Requests sent, answered, at servers, waiting and refused; mean times in the queue and to the answer."""
        return next(row.cells() for row in self.tenants.rows if row.name == name)


async def test_requests_are_counted_where_they_are():
    shop = Shop()
    routings, held = shop.fill(), [shop.ask("flood"), shop.ask("steady")]
    assert shop.cells("flood") == ("17", "0", "16", "1", "0", "0.00 s", "-")
    assert shop.cells("steady") == ("1", "0", "0", "1", "0", "-", "-")
    shop.clock.advance(1.5)
    for routing in routings:
        routing.complete(Cause.NATURAL)
    for one in held:
        await one.settle()
        one.routing().complete(Cause.NATURAL)
    # 16 went at once, and one after 1.5 s; all took 1.5 s
    assert shop.cells("flood") == ("17", "17", "0", "0", "0", "0.09 s", "1.50 s")
    assert shop.cells("steady") == ("1", "1", "0", "0", "0", "1.50 s", "1.50 s")
    shop.clock.advance(10.1)
    assert shop.cells("steady") == ("1", "1", "0", "0", "0", "-", "-")


async def test_request_that_waits_too_long_is_refused():
    shop = Shop()
    shop.fill()
    held = shop.ask("flood")
    settling = asyncio.ensure_future(held.settle())
    await asyncio.sleep(0)
    shop.clock.advance(3.1)
    await settling
    with pytest.raises(QueueTimeoutError):
        held.routing()
    assert shop.cells("flood")[:5] == ("17", "0", "16", "0", "1")


def test_few_names_of_clients_are_shown():
    shop = Shop()
    for number in range(10):
        shop.ask(f"tenant-{number}")
    assert [row.name for row in shop.tenants.rows] == ["steady", "flood", *(f"tenant-{number}" for number in range(6))]


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_into_a_terminal(width):
    shop = Shop()
    routings = shop.fill()
    shop.clock.advance(12.25)
    routings[0].complete(Cause.NATURAL)
    shop.ask("[bold]\x1b")
    console = Console(file=io.StringIO(), width=width)
    console.print(shop.tenants.table())
    title, upper, lower, *rows = console.file.getvalue().splitlines()
    assert title.strip() == "tenants"
    assert upper.split() == ["at", "time", "in", "time", "to"]
    assert lower.split() == ["tenant", "sent", "answered", "servers", "waiting", "refused", "queue", "answer"]
    assert [row.split()[0] for row in rows] == ["steady", "flood", "[bold]\\x1b"]
    assert rows[1].split()[1:] == ["16", "1", "15", "0", "0", "-", "12.25", "s"]


def test_line_has_all_tenants():
    assert Shop().tenants.line() == (
        "steady sent 0 answered 0 at servers 0 waiting 0 refused 0 time in queue - time to answer - | "
        "flood sent 0 answered 0 at servers 0 waiting 0 refused 0 time in queue - time to answer -"
    )
