# SPDX-License-Identifier: Apache-2.0
"""Keys of blocks: the values of llm-d-kv-cache, for blocks of four tokens 0, 1000, 2000 ..."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.kv_events.prompt_blocks import CborFnv, XxHash


def tokens(count: int) -> bytes:
    return array("I", range(0, 1000 * count, 1000)).tobytes()


@pytest.mark.parametrize(
    ("block_hash", "model", "extras", "expected"),
    [
        (CborFnv(), "m", [], [300273098055276365, 7778264552299838436]),
        (CborFnv(), "", [], [18351205246826340282]),
        (CborFnv("42"), "m", [], [17973840689921899195, 13500377058930782505]),
        (CborFnv(), "m", [["salt"]], [17860289406422750015, 15503400409651142679]),
        (CborFnv(), "m", [["img1", "img2"]], [11030794756678243366, 9310925993005922603]),
        (XxHash(), "m", [], [14344377684739878502, 16345788425105911909]),
        (XxHash("42"), "m", [], [13035587208448720958, 9040352650696297783]),
        (XxHash(), "m", [["salt"]], [6730458357496333042, 3302292994371261069]),
    ],
)
def test_keys_are_those_of_llm_d(block_hash, model, extras, expected):
    tokens_of_blocks = tokens(4 * len(expected) + 1)  # and one that is in no block
    assert block_hash.chain(block_hash.first(model), tokens_of_blocks, 4, extras) == expected


def test_blocks_after_a_parent_do_not_depend_on_the_model():
    assert CborFnv().chain(12345, tokens(4), 4) == [14909468060733642680]


def test_token_ids_of_any_size_are_hashed_in_their_shortest_form():
    ids = array("I", [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1])
    block = "8800 17 1818 18ff 190100 19ffff 1a00010000 1affffffff"
    expected = 0xCBF29CE484222325
    for byte in bytes.fromhex(f"83 00 {block} f6"):
        expected = (expected ^ byte) * 0x100000001B3 % 2**64
    assert CborFnv().chain(0, ids.tobytes(), 8) == [expected]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 7), st.integers(0, 40))
def test_keys_of_a_longer_prompt_begin_with_those_of_its_beginning(ids, size, cut):
    """And a rest that is shorter than a block has no key."""
    for block_hash in (XxHash("s"), CborFnv("s")):
        whole = block_hash.chain(block_hash.first("m"), array("I", ids).tobytes(), size)
        assert len(whole) == len(ids) // size
        part = block_hash.chain(block_hash.first("m"), array("I", ids[:cut]).tobytes(), size)
        assert whole[: len(part)] == part
