# SPDX-License-Identifier: Apache-2.0
from functools import partial

import numpy as np
import pytest

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


def test_two_functions_of_one_attribute_give_two_results():
    assert tag_numbers(POOL, count).tolist() == [2, 8]
    assert tag_numbers(POOL, doubled).tolist() == [4, 16]
    assert tag_numbers(POOL, count).tolist() == [2, 8]


def test_arguments_are_part_of_the_key():
    assert tag_numbers(POOL, scaled, 3).tolist() == [6, 24]
    assert tag_numbers(POOL, scaled, 10).tolist() == [20, 80]


def test_methods_of_two_instances_are_two_functions():
    assert tag_mask(POOL, Threshold(3).reached).tolist() == [False, True]
    assert tag_mask(POOL, Threshold(1).reached).tolist() == [True, True]


def test_a_mask_and_a_number_of_the_same_function_do_not_mix():
    numbers, mask = tag_numbers(POOL, count), tag_mask(POOL, count)
    assert (numbers.dtype, mask.dtype) == (np.float64, np.bool_)


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
        with pytest.raises(TypeError, match="define it at module level or as a method, and pass what it needs"):
            tag_numbers(POOL, function)
