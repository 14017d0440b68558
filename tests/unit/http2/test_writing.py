# SPDX-License-Identifier: Apache-2.0
"""What is written in one turn of the event loop."""

from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.http2.frames import LARGEST_FRAME
from epp.extproc.http2.protocol import FEW_PIECES, MANY_BYTES, some_of

PIECES = st.lists(
    st.tuples(st.integers(1, LARGEST_FRAME), st.integers(1, 40)).map(
        lambda drawn: [bytes([drawn[1]]) * drawn[0]] * drawn[1]
    ),
    max_size=6,
).map(lambda groups: [piece for group in groups for piece in group])


@given(PIECES)
def test_all_is_written_in_order_and_never_much_at_once(pieces):
    out, written = [*pieces], []
    while out:
        written.append(some_of(out))
    assert b"".join(written) == b"".join(pieces)
    assert all(len(each) < max(MANY_BYTES, FEW_PIECES * LARGEST_FRAME) + LARGEST_FRAME for each in written)


def test_answer_of_many_frames_takes_several_turns():
    out = [bytes(LARGEST_FRAME)] * 100
    sizes = []
    while out:
        sizes.append(len(some_of(out)))
    assert sizes[0] == MANY_BYTES
    assert sum(sizes) == 100 * LARGEST_FRAME
