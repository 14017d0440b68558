# SPDX-License-Identifier: Apache-2.0
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Records
from epp.framework.accelerators.arrays import tag_mask, tag_numbers
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates

POOL = candidates(records={ACCELERATOR: [AcceleratorTag(count=2, node="n1"), AcceleratorTag(count=8)]})


def count(tag):
    return tag.count


def doubled(tag):
    return 2 * tag.count


def scaled(tag, factor):
    return factor * tag.count


def total(values, *more):
    calls.append(values)
    return sum(values) + sum(more)


calls: list[tuple[int, ...]] = []


class Threshold:
    def __init__(self, least):
        self.least = least

    def reached(self, tag):
        return tag.count >= self.least


def test_function_and_arguments_are_the_key():
    assert tag_numbers(POOL, count).tolist() == [2, 8]
    assert tag_numbers(POOL, doubled).tolist() == [4, 16]
    assert tag_numbers(POOL, count).tolist() == [2, 8]
    assert tag_numbers(POOL, scaled, 3).tolist() == [6, 24]
    assert tag_numbers(POOL, scaled, 10).tolist() == [20, 80]
    assert tag_mask(POOL, Threshold(3).reached).tolist() == [False, True]
    assert tag_mask(POOL, Threshold(1).reached).tolist() == [True, True]  # another instance, another function
    assert (tag_numbers(POOL, count).dtype, tag_mask(POOL, count).dtype) == (np.float64, np.bool_)


def test_a_value_is_computed_once_even_where_it_is_none_or_zero():
    calls.clear()
    records = Records((1, -1))
    assert [records.derive(total) for _ in range(3)] == [0, 0, 0]
    assert calls == [(1, -1)]
    assert records.derive(total, 5) == 5
    assert len(calls) == 2


def test_a_function_made_anew_at_each_call_is_refused():
    factor = 2

    def closure(tag):
        return factor * tag.count

    for function in (closure, lambda tag: tag.count, partial(scaled, factor=2)):
        with pytest.raises(TypeError, match="define it at module level or as a method, and pass its inputs"):
            tag_numbers(POOL, function)


class Asked:
    """A number and a mask of records, and the records that they were asked for."""

    def __init__(self) -> None:
        self.of: list[object] = []

    def length(self, value: str) -> float | None:
        self.of.append(value)
        return len(value) if value else None

    def long(self, value: str, least: int) -> bool:
        self.of.append(value)
        return len(value) >= least


def test_number_of_each_record_is_taken_over_where_the_record_stays():
    asked, first = Asked(), Records(("a", "bb", ""))
    assert first.derive_numbers(asked.length).tolist() == pytest.approx([1.0, 2.0, np.nan], nan_ok=True)
    later = Records((*first.values[:1], "cccc", *first.values[2:], "d"), first)
    asked.of.clear()
    assert later.derive_numbers(asked.length).tolist() == pytest.approx([1.0, 4.0, np.nan, 1.0], nan_ok=True)
    assert later.derive_numbers(asked.length) is later.derive_numbers(asked.length)
    assert asked.of == ["cccc", "d"]
    assert first.derive_numbers(asked.length).tolist()[1] == 2.0  # readers of the former ones see no change


def test_mask_of_each_record_is_taken_over_across_records_that_nobody_read():
    asked, records = Asked(), Records(("a", "bb"))
    assert records.derive_mask(asked.long, 2).tolist() == [False, True]
    for value in ("b", "bbb", "bbbb"):
        records = Records((records.values[0], value), records)
    asked.of.clear()
    assert records.derive_mask(asked.long, 2).tolist() == [False, True]
    assert asked.of == ["bbbb"]
    assert records.derive_mask(asked.long, 5).tolist() == [False, False]  # other arguments, another mask


def test_arrays_that_are_not_used_any_more_are_not_handed_on_for_ever():
    asked, records = Asked(), Records(("a",))
    records.derive_numbers(asked.length)
    for _ in range(300):
        records = Records(records.values, records)
    assert records.reusable() == {}
    for least in range(1000):  # of clients, say
        records.derive_mask(asked.long, least)
    assert len(Records(records.values, records).reusable()) == 64


@given(st.lists(st.lists(st.sampled_from(["", "a", "bb", "ccc"]), min_size=2, max_size=5), max_size=8))
def test_numbers_are_those_of_the_records_whatever_came_before(generations):
    asked, records = Asked(), Records[str](())
    for number, values in enumerate(generations):
        records = Records(tuple(values), records)
        fresh = Records(tuple(values))
        if number % 3 != 1:  # some records have no readers
            found, wanted = records.derive_numbers(asked.length), fresh.derive_numbers(asked.length)
            assert found.tolist() == pytest.approx(wanted.tolist(), nan_ok=True)
            assert found.dtype == np.float64
            assert records.derive_mask(asked.long, 2).tolist() == fresh.derive_mask(asked.long, 2).tolist()


def test_records_that_follow_none_are_all_derived():
    before = Records(())
    before.derive_numbers(count)
    after = Records((AcceleratorTag(count=3),) * 1000, before)
    assert after.derive_numbers(count).tolist() == [3.0] * 1000
