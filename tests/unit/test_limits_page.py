# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/limits.md say what the flags, the budgets and the refusals of the code are."""

import re
from pathlib import Path

import pytest
import typer.main

from epp.cli.app import application
from epp.cli.options import Bytes, Seconds, parameters
from epp.cli.picker_flags import Serve
from epp.extproc.budgets import Budgets
from epp.extproc.http2 import tls_session
from epp.extproc.http2.limits import Limits
from epp.extproc.settings import DEFAULT_GATHERED_BYTES, BudgetSettings
from epp.framework.errors import RequestError
from epp.framework.refusals import BodyTimeoutError, TooManyBytesError, TooManyPendingError, TooManyStreamsError
from epp.plugins.parsers import grpc, json_parser
from epp.pool.collectors import engine
from epp.pool.collectors.sources import http, response_parser
from epp.pool.settings import PageLimits

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "limits.md").read_text()
FLAGS = {flag for each in typer.main.get_command(application()).commands["serve"].params for flag in each.opts}
DEFAULTS = {f"--{name.replace('_', '-')}": each.default for name, each in parameters(Serve).parameters.items()}
REFUSALS: list[type[RequestError]] = [TooManyBytesError, TooManyPendingError, TooManyStreamsError, BodyTimeoutError]


def rows(heading: str) -> list[list[str]]:
    """The cells of the rows of the table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


BUDGETS = rows("What gateways and their clients may take")
BODIES = dict(rows("What one request body may have"))
PAGES = rows("What model servers send, and what operators' clients hold")


def shown(default: object) -> str:
    """A default as the page has it, without the commas of thousands."""
    if isinstance(default, Bytes | Seconds):
        return str(default)
    assert type(default) is int
    return f"{default}"


@pytest.mark.parametrize("row", BUDGETS, ids=lambda row: row[1])
def test_default_of_a_budget_is_that_of_its_flag(row):
    flag, written = row[1].strip("`"), row[2]
    default = DEFAULTS[flag]
    if flag == "--max-gathered-bytes":
        assert default is None, "it depends on --max-request-body"
        assert written == f"{Bytes(DEFAULT_GATHERED_BYTES)}, or twice `--max-request-body`"
        assert BudgetSettings(max_body_bytes=10).least_gathered_bytes == 20
    else:
        assert written.replace(",", "") == shown(default)


def test_every_budget_has_its_row():
    named = {match[1] for row in BUDGETS if (match := re.match(r"`(\w+)`", row[0]))}
    assert named == {budget.name for budget in Budgets(BudgetSettings())}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.reason)
def test_refusal_is_the_one_of_the_table(refusal):
    (row,) = [row for row in BUDGETS if f"`{refusal.reason}`" in row[3]]
    assert row[3].startswith(f"{refusal.status}, ")
    after = re.search(r"`retry-after: (\d+)`", row[3])
    assert (None if after is None else int(after[1])) == refusal.retry_after_seconds


PAIRS = [
    (flag, default)
    for row in PAGES
    for group, default in re.findall(r"((?:`--[a-z-]+`, )*`--[a-z-]+`) \(([^)]+)\)", row[1])
    for flag in re.findall(r"--[a-z-]+", group)
]


@pytest.mark.parametrize(("flag", "written"), PAIRS)
def test_default_of_a_limit_is_that_of_its_flag(flag, written):
    assert written == shown(DEFAULTS[flag])


def test_every_flag_of_the_tables_was_compared():
    named = set(re.findall(r"`(--[a-z-]+)`", "".join(row[1] for row in (*BUDGETS, *PAGES))))
    assert named == {flag for flag, _ in PAIRS} | {row[1].strip("`") for row in BUDGETS}
    assert len(named) >= 13
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= FLAGS


@pytest.mark.parametrize(
    ("limit", "written"),
    [
        ("chunks, headers and trailers of a metrics response", f"{response_parser.MOST_PIECES:,} (fixed)"),
        ("time for a metrics response", f"`timeout` of the source ({http.ModelsSourceParameters().timeout})"),
        ("bytes of a list of models", f"{http.MOST_BYTES // 2**20} MiB, {http.MOST_OBJECTS:,} objects (fixed)"),
        (
            (
                "bytes of incomplete metrics responses that a plugin needs as a whole, without the first "
                f"{response_parser.UNCOUNTED_BYTES >> 10} KiB of each"
            ),
            f"{PageLimits().arriving_bytes >> 20} MiB (fixed)",
        ),
        ("names", f"{engine.MOST_ADAPTERS:,} adapters, of {engine.LONGEST_NAME} characters each (fixed)"),
    ],
)
def test_limit_without_a_flag_is_that_of_the_code(limit, written):
    (row,) = [row for row in PAGES if row[0] == limit]
    assert row[1] == written


def test_limits_of_bodies_are_those_of_the_code():
    limits = (
        json_parser.MOST_VALUES,
        json_parser.MOST_TOKEN_IDS,
        json_parser.MOST_TOKEN_ID_BYTES,
        json_parser.MOST_LISTED_TOKEN_IDS,
        json_parser.MOST_TEXT,
        json_parser.MOST_ESCAPES,
        json_parser.MOST_MODEL,
        grpc.MOST_FEATURES,
        grpc.MOST_FIELDS,
    )
    assert list(BODIES.values()) == [f"{limit:,}" for limit in limits]


def test_limit_of_new_keys_is_that_of_the_code():
    rate = Limits().empty_records
    words = " ".join(PAGE.split())
    assert f"{rate.burst:,} TLS records without data in a burst, and {rate.per_second} per second" in words
    assert f"decrypts {tls_session.FEW_RECORDS} records at a time" in words


def test_threshold_of_a_logged_delay_is_that_of_its_flag():
    assert DEFAULTS["--stall-threshold"] == 100 / 1000
    assert "`--stall-threshold`, 100 ms by default" in PAGE
