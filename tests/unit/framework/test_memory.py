# SPDX-License-Identifier: Apache-2.0
"""Memory as people write it."""

import pytest

from epp.framework.quantities import GIB, memory_suffices, parse_memory


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("40Gi", 40 * GIB),
        ("80G", 80 * 10**9),
        (40, 40 * GIB),
        (1.5, 3 * GIB // 2),
        ("40", 40 * GIB),
        (" 16Gi ", 16 * GIB),
        (17179869184, 16 * GIB),
        ("17179869184", 16 * GIB),
    ],
)
def test_quantities_and_plain_numbers_of_gib(written, size):
    assert parse_memory(written) == size


@pytest.mark.parametrize("written", ["", "much", "-1Gi", 0, "0", "0Gi", -3, float("nan"), float("inf")])
def test_what_is_no_size_is_refused(written):
    with pytest.raises(ValueError, match=r"memory size|quantity"):
        parse_memory(written)


def test_nominal_size_may_be_three_per_cent_short():
    assert memory_suffices(79.6 * GIB, 80 * GIB)
    assert memory_suffices(97, 100)
    assert not memory_suffices(96.9, 100)
