# SPDX-License-Identifier: Apache-2.0
"""The sample of training entries that is transferred."""

from random import Random

import pytest

from epp.pool.predicted_latency.messages import Entry, TrainingBuffer

ROW = (0.5, 100, 0, 1, 0.0, 0, 1, 0, 0, 0)


def entry(number):
    return Entry(*ROW, actual_ttft_ms=float(number), actual_tpot_ms=0.0, timestamp="")


@pytest.mark.parametrize(
    ("first", "further", "kept"),
    [(3, 4, (3, 4)), (8, 2, (8, 2)), (800, 200, (8, 2)), (10, 0, (10, 0)), (0, 30, (0, 10)), (999, 1, (10, 0))],
)
def test_sample_keeps_the_shares_of_both_kinds(first, further, kept):
    buffer = TrainingBuffer(10, Random(1))
    for number in range(first):
        buffer.add("ttft", entry(number))
    for number in range(further):
        buffer.add("tpot", entry(-number - 1))
    sample, left_out = buffer.take()
    found = sum(each.actual_ttft_ms >= 0 for each in sample)
    assert (found, len(sample) - found) == kept
    assert left_out == first + further - len(sample)
    assert len(set(sample)) == len(sample)
    assert buffer.take() == ([], 0)


def test_late_entries_are_as_likely_in_the_sample_as_early_ones():
    buffer = TrainingBuffer(100, Random(1))
    for number in range(1000):
        buffer.add("ttft", entry(number))
    late = sum(each.actual_ttft_ms >= 500 for each in buffer.take()[0])
    assert 35 <= late <= 65
