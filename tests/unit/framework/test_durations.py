# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.quantities import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("1s", 1.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("100µs", 1e-4),
        ("100us", 1e-4),
        ("7ns", 7e-9),
        ("0", 0.0),
        ("0s", 0.0),
    ],
)
def test_duration_is_the_sum_of_its_parts(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "ms", "-1s", "1 s", "1s ", "1d", "1e3s", "s1", ".s", "1m30", "\uff11s"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="not a duration: write numbers with a unit") as refusal:
        parse_duration(text)
    assert repr(text) in str(refusal.value)


UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS))), min_size=1, max_size=6))
def test_parts_may_come_in_any_order_and_number(parts):
    text = "".join(f"{count}{unit}" for count, unit in parts)
    assert math.isclose(parse_duration(text), sum(count * UNITS[unit] for count, unit in parts))


@given(st.text(max_size=12))
def test_any_text_gives_seconds_or_a_refusal(text):
    try:
        assert parse_duration(text) >= 0
    except ValueError as refusal:
        assert "not a duration" in str(refusal)  # noqa: PT017 - either outcome is right
