# SPDX-License-Identifier: Apache-2.0
"""Twelve thousand frames, valid and invalid: no crash, no open call, no leak; `make fuzz` sends two million."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.http2.fuzzing import ByteRandom, Figures, alive, fuzz

FRAMES = 4_000


@pytest.mark.parametrize("faults", [0, 1, 5])
def test_frames_leave_nothing_behind(faults):
    random, figures = Random(faults), Figures()
    before = alive()
    while figures.frames < FRAMES:
        fuzz(random, faults, figures)
    assert alive() == before
    assert figures.messages > FRAMES / 20
    assert faults or not figures.refused  # frames without a fault end no connection


def test_bytes_that_a_fuzzer_chooses_leave_nothing_behind():
    @given(st.binary(max_size=2_000), st.integers(0, 10))
    def send(content, faults):
        fuzz(ByteRandom(content), faults, Figures())

    before = alive()
    send()
    assert alive() == before
