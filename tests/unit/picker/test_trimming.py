# SPDX-License-Identifier: Apache-2.0
"""When memory of bodies is given back."""

from epp.picker.trimming import WORTHWHILE_BYTES, Trimmer

MUCH = 4 * WORTHWHILE_BYTES


def test_memory_is_given_back_once_most_of_many_bytes_are_gone():
    held = [0, MUCH, MUCH, MUCH // 2 + 1, MUCH // 4, MUCH // 4, 0, 0]
    trimmer = Trimmer(iter(held).__next__)
    assert [trimmer.is_due() for _ in held] == [False, False, False, False, True, False, True, False]


def test_little_is_not_worth_the_work():
    held = [WORTHWHILE_BYTES - 1, 0, WORTHWHILE_BYTES // 2, 0]
    trimmer = Trimmer(iter(held).__next__)
    assert not any(trimmer.is_due() for _ in held)
