# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.quantities import exact_quantity, parse_quantity

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500", 500),
        ("0", 0),
        ("007", 7),
        ("+5", 5),
        ("2k", 2000),
        ("2.k", 2000),
        (".5k", 500),
        ("1G", 10**9),
        ("1.5G", 1_500_000_000),
        ("2E", 2 * 10**18),
        ("1.5Ki", 1536),
        ("10Gi", 10 * 2**30),
        ("1e3", 1000),
        ("1e+3", 1000),
        ("12E2", 1200),
        # rounded up
        ("15e-1", 2),
        ("0.1", 1),
        ("100m", 1),
        ("2500m", 3),
        ("1u", 1),
        ("1500000000n", 2),
        ("0.0001Ki", 1),
    ],
)
def test_quantities(text, number):
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "G",
        " 5",
        "5 ",
        "5 G",
        "5gi",
        "5Q",
        "1kk",
        "1e",
        "1e3k",
        "1.2.3",
        "1_000",
        "0x10",
        "٣",
        "-5",
        "-0",
        "--5",
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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100m", Fraction(1, 10)),
        ("-1.5Ki", -1536),
        ("25e-2", Fraction(1, 4)),
        ("3n", Fraction(3, 10**9)),
        (0.1, Fraction(1, 10)),
        (7, 7),
    ],
)
def test_exact_quantities_keep_sign_and_parts(text, number):
    assert exact_quantity(text) == number


@pytest.mark.parametrize("value", ["", "1x", "nan", float("nan"), float("inf"), True])
def test_what_is_no_exact_quantity_is_refused(value):
    with pytest.raises(ValueError, match="is not a quantity"):
        exact_quantity(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80Gi", 80 * 2**30),
        ("80G", 80 * 10**9),
        ("0.5", Fraction(1, 2)),
        ("1e2", 100),
        ("500m", Fraction(1, 2)),
        ("250u", Fraction(1, 4000)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1E", 10**18),
        ("1E3", 1000),
        (1e16, 10**16),
    ],
)
def test_ome_1_quantities_follow_the_whole_kubernetes_grammar(text, number):
    assert exact_quantity(text) == number


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(sorted(DECIMAL)), st.sampled_from(["", "+", "-"]))
def test_ome_1_decimal_suffixes_are_powers_of_ten(whole, thousandths, suffix, sign):
    expected = (whole + Fraction(thousandths, 1000)) * Fraction(10) ** DECIMAL[suffix]
    assert exact_quantity(f"{sign}{whole}.{thousandths:03}{suffix}") == (-expected if sign == "-" else expected)


@given(st.integers(0, 10**6), st.integers(-30, 30), st.sampled_from("eE"))
def test_ome_1_exponents_have_a_sign(number, exponent, letter):
    assert exact_quantity(f"{number}{letter}{exponent}") == number * Fraction(10) ** exponent
