# SPDX-License-Identifier: Apache-2.0
"""Targets, ratios and the table of a run, from figures that are given."""

import math
from pathlib import Path

import msgspec
import pytest
from report.catalogue import BY_ID, NEEDS_API_SERVER
from report.document import Document, RowFigures, document
from report.samples import Samples
from report.table import number, table
from rig.pickers import PickerKind

REPOSITORY = Path(__file__).parents[3]
OWN = PickerKind("asyncio", "python -P -m epp serve --transport=asyncio")
OTHER = PickerKind("before", "elsewhere/epp serve", ours=False)
REFERENCE = PickerKind("reference", "go-epp", ours=False)


def run(figures: dict[str, list[float]], *kinds: PickerKind, row: str = "request-16") -> Document:
    """A run with these figures of one row, by picker."""
    samples = Samples()
    for picker, values in figures.items():
        for value in values:
            samples.add(row, picker, value)
    return document(samples, kinds=kinds, quick=False, load="given")


def the_row(*arguments: object, **more: object) -> RowFigures:
    (row,) = run(*arguments, **more).rows
    return row


def test_figure_is_the_median_of_the_turns():
    found = the_row({"asyncio": [100.0, 140.0, 110.0]}, OWN).by["asyncio"]
    assert (found.median, found.min, found.max, found.n) == (110.0, 100.0, 140.0, 3)


@pytest.mark.parametrize(("figure", "met"), [(149.0, True), (150.0, False)])
def test_target_is_a_share_of_what_the_reference_took(figure, met):
    row = the_row({"asyncio": [figure]}, OWN)
    assert row.target == pytest.approx(149.6)  # 0.8 of 187
    assert row.met is met


def test_reference_in_the_same_run_sets_the_target():
    row = the_row({"asyncio": [250.0, 250.0], "reference": [300.0, 340.0]}, OWN, REFERENCE)
    assert row.target == pytest.approx(256.0)  # 0.8 of 320
    assert row.met is True


def test_row_without_a_target_is_neither_met_nor_not():
    row = the_row({"asyncio": [1.0]}, OWN, row="few-16")
    assert (row.target, row.met) == (None, None)


def test_ratio_is_that_of_each_turn():
    ratio = the_row({"asyncio": [50.0, 90.0, 40.0], "before": [100.0, 300.0, 100.0]}, OWN, OTHER).ratios["before"]
    assert ratio.median == pytest.approx(0.4)  # of 0.5, 0.3 and 0.4
    assert ratio.least == pytest.approx(0.4)  # 40 to 100


def test_nothing_is_a_share_of_zero():
    assert the_row({"asyncio": [1.0], "before": [0.0]}, OWN, OTHER).ratios == {}


def test_carriers_of_one_program_have_no_ratio():
    own = PickerKind("grpcio", "python -P -m epp serve")
    assert the_row({"asyncio": [1.0], "grpcio": [2.0]}, OWN, own).ratios == {}


def test_figure_of_an_unknown_row_is_refused():
    with pytest.raises(KeyError):
        Samples().add("request-17", "asyncio", 1.0)


def test_table_has_figures_ratio_target_and_verdict():
    shown = table(run({"asyncio": [99.0, 101.0], "before": [400.0, 400.0]}, OWN, OTHER))
    (line,) = [line for line in shown.splitlines() if line.startswith("400 B prompt, full duplex, 16 connections")]
    assert line.split("  us")[1].split("  ")[1:] == [
        *("", "100 (99.0 to 101, 2)", "400 (400 to 400, 2)", "0.25 (0.25)", "", "", "", "", "", "", "<= 150", "met")
    ]


@pytest.mark.parametrize(
    ("figure", "shown"), [(14_700.4, "14,700"), (15.64, "15.6"), (1.234, "1.23"), (0.0078, "0.008")]
)
def test_number_has_the_digits_that_count(figure, shown):
    assert number(figure) == shown


def test_command_of_this_program_is_shown_without_the_places_of_the_machine():
    (command,) = run({"asyncio": [1.0]}, OWN).pickers.values()
    assert command == "epp serve --transport=asyncio"


def committed() -> Document:
    return msgspec.json.decode((REPOSITORY / "tests/bench/bench.json").read_bytes(), type=Document)


def test_committed_figures_are_of_a_whole_run():
    found = committed()
    assert not found.quick
    assert {row.id for row in found.rows} >= BY_ID.keys() - NEEDS_API_SERVER
    assert "/" not in "".join(found.pickers.values()).replace("{", "")
    assert all(math.isfinite(each.median) for row in found.rows for each in row.by.values())


def test_verdict_of_each_committed_row_follows_from_its_figures():
    for row in committed().rows:
        first = next(iter(row.by.values()))
        assert row.met == (None if row.target is None else first.median <= row.target), row.id
