# SPDX-License-Identifier: Apache-2.0
"""When memory of bodies is given back."""

import pytest

from epp.app.trimming import WORTHWHILE_BYTES, Trimmer
from epp.extproc.http2.capacity import BufferedBytes

MUCH = 4 * WORTHWHILE_BYTES


@pytest.fixture
def held():
    return BufferedBytes("gathered_bytes", 1 << 40)


def looks(held, amounts):
    """Whether memory is given back at a look after each of these amounts is held."""
    trimmer, account = Trimmer(held), held.account()
    found = []
    for amount in amounts:
        account.put(amount - account.size)
        found.append(trimmer.is_due())
    return found


def test_memory_is_given_back_once_most_of_many_bytes_are_gone(held):
    amounts = [0, MUCH, MUCH, MUCH // 2 + 1, MUCH // 4, MUCH // 4, 0, 0]
    assert looks(held, amounts) == [False, False, False, False, True, False, True, False]


def test_little_is_not_worth_the_work(held):
    assert not any(looks(held, [WORTHWHILE_BYTES - 1, 0, WORTHWHILE_BYTES // 2, 0]))


def test_body_that_comes_and_goes_between_two_looks_counts(held):
    trimmer, account = Trimmer(held), held.account()
    assert not trimmer.is_due()
    account.put(WORTHWHILE_BYTES)
    account.put(-WORTHWHILE_BYTES)
    assert trimmer.is_due()
    assert not trimmer.is_due()
