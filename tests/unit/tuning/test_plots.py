# SPDX-License-Identifier: Apache-2.0
"""Plots are SVG that any reader of XML accepts, whatever the labels and numbers are."""

from math import inf, nan
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from epp.lab import html
from epp.lab.html import Bar, Series, bars, curves, pareto, points, steps_down

numbers = st.floats(-1e6, 1e6) | st.floats(1e-6, 1e9) | st.sampled_from([0.0, nan, inf])
texts = st.text(st.characters(categories=["L", "N", "P", "S", "Z"]), max_size=12)


def parsed(plot):
    return ET.fromstring(plot)  # noqa: S314  made here


@given(st.lists(st.tuples(texts, st.lists(st.tuples(numbers, numbers), max_size=8)), max_size=4), st.booleans())
def test_curves_and_points_of_any_numbers_are_well_formed(given_series, log_x):
    series = [Series(label, [x for x, _ in pairs], [y for _, y in pairs]) for label, pairs in given_series]
    for plot in (curves(series, "seconds", "share", log_x=log_x), points(series, "dollars", "seconds")):
        parsed(plot)
        assert "nan" not in plot
        assert "inf" not in plot


@given(st.lists(st.tuples(texts, numbers, numbers, numbers), max_size=6))
def test_bars_of_any_numbers_are_well_formed(rows):
    plot = bars([Bar(*row, "1 %") for row in rows], "change")
    parsed(plot)


def test_a_curve_goes_through_its_points_from_left_to_right():
    plot = curves([Series("a", [0, 1, 2, nan], [0.0, 0.5, 1.0, inf])], "x", "y")
    line = parsed(plot).find("polyline")
    xs = [float(pair.split(",")[0]) for pair in line.get("points").split()]
    assert len(xs) == 3
    assert xs == sorted(xs)


def test_a_front_has_the_points_that_no_other_beats():
    found = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0), (4.0, 2.0)]
    assert pareto(found) == [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]
    assert steps_down(pareto(found)) == [(1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (4.0, 3.0), (4.0, 1.0)]


def test_a_page_shows_text_from_outside_as_text_and_loads_nothing():
    figure = html.figure(html.matrix(["<r>"], ["c"], [[0.5]]), above=html.legend(["<l>"]))
    text = html.page("<b>", "a & b", [html.section("<i>", figure)]) + html.table(["<h>"], [["<c>"]])
    assert not {"<b>", "<i>", "<r>", "<l>", "<h>", "<c>"} & set(text.replace(">", "> ").split(" "))
    assert "http" not in text
    assert "<script" not in text
