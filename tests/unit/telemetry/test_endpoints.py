# SPDX-License-Identifier: Apache-2.0
"""What people are told of the endpoints: as a table, and as a log line."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from epp.framework import Endpoint
from epp.framework.datalayer import Contact, Unresolved
from epp.pool.collectors.polling.conditions import Condition, Conditions
from epp.telemetry.endpoints import EndpointReport, as_text, endpoint_states
from tests.support.waiting import until

ANSWERING, NOT_ASKED = Condition(Contact.ANSWERS), Condition(Contact.NOT_ASKED)
REFUSED = Condition(Contact.REFUSED, "nothing listens at 10.0.0.2:8000: connection refused", "start the server")
NO_PAGE = Condition(Contact.NO_PAGE, "http://10.0.0.3:8000/metrics answered 404 Not Found", "enable its metrics")
GOOD, DEAD, BARE = Endpoint("good", "10.0.0.1", 8000), Endpoint("dead", "10.0.0.2", 8000), Endpoint("b", "10.0.0.3", 80)
LOST = Unresolved("default/lost", "no.such.host", "Name or service not known")


@pytest.fixture
def conditions() -> Conditions:
    conditions = Conditions()
    conditions.put(GOOD, ANSWERING)
    conditions.put(DEAD, REFUSED)
    conditions.put(BARE, NO_PAGE)
    return conditions


def plain(text: str) -> str:
    """Without the colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def words(text: str) -> str:
    """What is left when cells are no longer broken into lines: each letter, in any order of lines."""
    return "".join(sorted("".join(plain(text).split())))


def test_table_has_every_endpoint_whether_it_is_used_why_and_the_remedy(conditions):
    text = plain(as_text(endpoint_states(conditions.all, [LOST]), width=200))
    assert "endpoints: 2 of 4 used" in text
    rows = [line.strip().split(maxsplit=2) for line in text.splitlines()]
    assert ["good", "yes", "answers"] in rows
    assert ["dead", "no", "nothing listens at 10.0.0.2:8000: connection refused"] in rows
    assert ["b", "yes", "http://10.0.0.3:8000/metrics answered 404 Not Found"] in rows
    assert ["lost", "no", "the name no.such.host has no address: Name or service not known"] in rows
    for remedy in ("-> start the server", "-> enable its metrics", "-> correct the name, or write an IP address"):
        assert remedy in text


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_cut_off_in_a_narrow_terminal(conditions, width):
    long = Endpoint("a-name-that-is-longer-than-its-column-is-wide", "10.0.0.4", 8000, host="h" * 60, tls=True)
    conditions.put(long, Condition(Contact.NOT_TRUSTED, "why " * 40, "with --endpoint-insecure-skip-verify"))
    states = endpoint_states(conditions.all, [LOST])
    narrow = as_text(states, width)
    assert max(map(len, plain(narrow).splitlines())) <= width
    assert words(narrow).replace("─", "") == words(as_text(states, width=400)).replace("─", "")


def test_large_pool_is_counted_and_only_what_needs_attention_is_shown():
    conditions = Conditions()
    for number in range(1000):
        condition = REFUSED if number >= 970 else ANSWERING
        conditions.put(Endpoint(f"e{number:03}", "10.0.0.1", number + 1), condition)
    text = plain(as_text(endpoint_states(conditions.all, []), width=80))
    assert "endpoints: 970 of 1000 used" in text
    assert [line.split()[0] for line in text.splitlines() if " no " in line] == [f"e{n}" for n in range(970, 990)]
    assert "and 980 more, 10 of them need attention" in text


def test_address_is_as_people_write_it_and_a_reason_from_a_server_cannot_control_the_terminal(conditions):
    conditions = Conditions()
    conditions.put(Endpoint("named", "10.0.0.1", 8443, host="gpu.example", tls=True), ANSWERING)
    conditions.put(Endpoint("six", "::1", 8000, namespace="other"), ANSWERING)
    states = endpoint_states(conditions.all, [])
    found = {state.name: state.address for state in states}
    assert found == {"named": "https://gpu.example:8443", "other/six": "[::1]:8000"}
    conditions.put(BARE, Condition(Contact.NO_PAGE, "answered 404 \x1b]0;owned\x07[red]x[/red]"))
    text = as_text(endpoint_states(conditions.all, []), width=120)
    assert "\x1b]" not in text
    assert "answered 404 ?]0;owned?[red]x[/red]" in text


def test_log_line_has_counts_and_what_needs_attention(conditions):
    report = EndpointReport(conditions, lambda: [LOST], None)
    with capture_logs() as logs:
        report.report()
    (line,) = logs
    assert (line["event"], line["log_level"], line["total"], line["used"]) == ("endpoints", "warning", 4, 2)
    assert [entry["endpoint"] for entry in line["attention"]] == ["dead", "b", "lost"]
    assert line["attention"][0] == {
        "endpoint": "dead", "address": "10.0.0.2:8000", "used": False,
        "why": "nothing listens at 10.0.0.2:8000: connection refused", "remedy": "start the server",
    }  # fmt: skip


def test_it_is_told_again_only_when_a_kind_changes(conditions):
    report = EndpointReport(conditions, tuple, None)
    with capture_logs() as logs:
        assert report.report()
        conditions.put(DEAD, Condition(Contact.REFUSED, "closed without an answer"))
        assert not report.report()
        conditions.put(DEAD, ANSWERING)
        conditions.put(BARE, ANSWERING)
        assert report.report()
        conditions.remove(DEAD.id)
        assert report.report()
    told = [(line["log_level"], line["used"], line["total"]) for line in logs]
    assert told == [("warning", 2, 3), ("info", 3, 3), ("info", 2, 2)]


def test_on_a_terminal_the_table_stands_in_place_of_the_line(conditions):
    terminal = io.StringIO()
    with capture_logs() as logs:
        EndpointReport(conditions, tuple, terminal).report()
    assert logs == []
    assert "endpoints: 2 of 3 used" in plain(terminal.getvalue())


@pytest.fixture
def quick(monkeypatch):
    """The same as ever, in less time."""
    for name in ("_CHECK_SECONDS", "_SHORTEST_GAP_SECONDS", "_UNRESOLVED_CHECK_SECONDS"):
        monkeypatch.setattr(f"epp.telemetry.endpoints.{name}", 0.01)


@asynccontextmanager
async def followed(report: EndpointReport) -> AsyncIterator[list[dict]]:
    """Let the report tell of changes within the block, and yield its lines."""
    with capture_logs() as logs:
        following = asyncio.create_task(report.follow())
        yield logs
        following.cancel()
        await asyncio.wait({following})


async def test_changes_are_collected_into_one_report(conditions, quick):
    report = EndpointReport(conditions, tuple, None)
    async with followed(report) as logs:
        await until(lambda: logs, "the start is told")
        for number in range(100):
            conditions.put(DEAD, REFUSED if number % 2 else ANSWERING)
            conditions.put(Endpoint(f"e{number}", "10.0.0.9", number + 1), ANSWERING)
        await until(lambda: len(logs) > 1, "the changes are told")
    assert [(line["used"], line["total"]) for line in logs] == [(2, 3), (102, 103)]


async def test_endpoint_that_only_discovery_knows_of_is_told_too(conditions, quick):
    unresolved = []
    report = EndpointReport(conditions, lambda: unresolved, None)
    async with followed(report) as logs:
        await until(lambda: logs, "the start is told")
        unresolved.append(LOST)
        await until(lambda: len(logs) > 1, "the change is told")
    assert [entry["endpoint"] for entry in logs[1]["attention"]] == ["dead", "b", "lost"]


async def test_start_is_told_once_every_endpoint_has_been_asked(conditions, quick):
    conditions.put(GOOD, NOT_ASKED)
    report = EndpointReport(conditions, tuple, None)
    async with followed(report) as logs:
        asyncio.get_running_loop().call_soon(conditions.put, GOOD, REFUSED)
        await until(lambda: logs, "the start is told")
    assert [entry["endpoint"] for entry in logs[0]["attention"]] == ["good", "dead", "b"]
