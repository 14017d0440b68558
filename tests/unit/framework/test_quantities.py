# SPDX-License-Identifier: Apache-2.0
"""Quantities, durations, memory sizes and names of MIG profiles."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.quantities import (
    GIB,
    compute_slices,
    exact_quantity,
    memory_suffices,
    parse_duration,
    parse_memory,
    parse_quantity,
)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@pytest.mark.parametrize(
    ("number", "texts"),
    [
        (500, "500"), (0, "0"), (7, "007"), (5, "+5"), (2000, "2k 2.k"), (500, ".5k"), (10**9, "1G"),
        (1_500_000_000, "1.5G"), (2 * 10**18, "2E"), (1536, "1.5Ki"), (10 * 2**30, "10Gi"),
        (1000, "1e3 1e+3"), (1200, "12E2"),
        # rounded up
        (2, "15e-1 1500000000n"), (1, "0.1 100m 1u 0.0001Ki"), (3, "2500m"),
    ],
)  # fmt: skip
def test_quantities(number, texts):
    assert {parse_quantity(text) for text in texts.split()} == {number}


@pytest.mark.parametrize(
    "text",
    [
        *("", " 5", "5 ", "5 G", ".", "G", "5gi", "5Q", "1kk", "1e", "1e3k"),
        *("1.2.3", "1_000", "0x10", "٣", "-5", "-0", "--5"),
    ],
)
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a quantity: write 0 or more"):
        parse_quantity(text)


@given(st.integers(0, 10**12), st.sampled_from(sorted(DECIMAL.keys() - {"n", "u", "m"}) + sorted(BINARY)))
def test_whole_numbers_are_exact_in_every_unit(number, unit):
    assert parse_quantity(f"{number}{unit}") == number * (2 ** BINARY[unit] if unit in BINARY else 10 ** DECIMAL[unit])


@given(st.integers(0, 10**12))
def test_parts_are_rounded_up_to_the_next_whole_number(thousandths):
    assert parse_quantity(f"{thousandths}m") == -(-thousandths // 1000)


@given(st.integers(0, 10**6), st.integers(0, 30))
def test_exponents_are_powers_of_ten(number, exponent):
    assert parse_quantity(f"{number}e{exponent}") == number * 10**exponent


@given(st.text(max_size=8) | st.text(alphabet="0123456789.+-eEkMGTPEinum", max_size=8))
def test_any_text_is_a_quantity_or_refused(text):
    try:
        whole = parse_quantity(text)
    except ValueError:
        return
    # rounded up from the exact number
    assert whole - 1 < exact_quantity(text) <= whole


@pytest.mark.parametrize("value", ["", "1x", "nan", float("nan"), float("inf"), True])
def test_what_is_no_exact_quantity_is_refused(value):
    with pytest.raises(ValueError, match="is not a quantity"):
        exact_quantity(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80Gi", 80 * 2**30), ("80G", 80 * 10**9), ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)), ("5.", 5),
        ("100m", Fraction(1, 10)), ("500m", Fraction(1, 2)), ("250u", Fraction(1, 4000)), ("3n", Fraction(3, 10**9)),
        ("1e2", 100), ("25e-2", Fraction(1, 4)), ("1E", 10**18), ("1E3", 1000), ("-1.5Ki", -1536),
        (1e16, 10**16), (0.1, Fraction(1, 10)), (7, 7),
    ],
)  # fmt: skip
def test_ome_1_quantities_follow_the_whole_kubernetes_grammar(text, number):
    assert exact_quantity(text) == number


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(sorted(DECIMAL)), st.sampled_from(["", "+", "-"]))
def test_ome_1_decimal_suffixes_are_powers_of_ten(whole, thousandths, suffix, sign):
    expected = (whole + Fraction(thousandths, 1000)) * Fraction(10) ** DECIMAL[suffix]
    assert exact_quantity(f"{sign}{whole}.{thousandths:03}{suffix}") == (-expected if sign == "-" else expected)


@given(st.integers(0, 10**6), st.integers(-30, 30), st.sampled_from("eE"))
def test_ome_1_exponents_have_a_sign(number, exponent, letter):
    assert exact_quantity(f"{number}{letter}{exponent}") == number * Fraction(10) ** exponent


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05), ("1s", 1.0), ("1m30s", 90.0), ("1.5h", 5400.0), (".5s", 0.5), ("1.s", 1.0),
        ("100µs", 1e-4), ("100us", 1e-4), ("7ns", 7e-9), ("0", 0.0), ("0s", 0.0),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("size", "spellings"),
    [
        (40 * GIB, ["40Gi", "40", 40]),
        (80 * 10**9, ["80G"]),
        (3 * GIB // 2, [1.5]),
        (16 * GIB, [" 16Gi ", 17179869184, "17179869184"]),
    ],
)
def test_quantities_and_plain_numbers_of_gib(size, spellings):
    assert [parse_memory(written) for written in spellings] == [size] * len(spellings)


@pytest.mark.parametrize("written", ["", "much", "-1Gi", 0, "0", "0Gi", -3, float("nan"), float("inf")])
def test_what_is_no_size_is_refused(written):
    with pytest.raises(ValueError, match=r"memory size|quantity"):
        parse_memory(written)


def test_nominal_size_may_be_three_per_cent_short():
    assert memory_suffices(79.6 * GIB, 80 * GIB)
    assert memory_suffices(97, 100)
    assert not memory_suffices(96.9, 100)


def test_is_6_compute_slices_are_those_of_the_compute_instance():
    assert compute_slices("3g.20gb") == 3
    assert compute_slices("1c.3g.20gb") == 1
    assert compute_slices("") is None
