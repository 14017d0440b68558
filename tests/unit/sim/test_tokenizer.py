# SPDX-License-Identifier: Apache-2.0
"""Tokens, answers and block hashes."""

from hypothesis import given
from hypothesis import strategies as st

from epp.lab.sim.plan import answer_tokens, block_hashes, render_chat, tokenize


def test_a_token_is_four_bytes():
    assert tokenize("abcdefghi") == [b"abcd", b"efgh", b"i"]
    assert len(tokenize("äöü")) == 2  # six bytes
    assert tokenize("") == []


@given(st.text())
def test_no_byte_of_a_text_is_lost(text):
    assert b"".join(tokenize(text)) == text.encode()


def test_answer_depends_on_prompt_model_and_seed_only():
    answer = answer_tokens([b"abcd"], 5, model="m", seed=0)
    assert answer == answer_tokens([b"abcd"], 5, model="m", seed=0)
    assert answer != answer_tokens([b"abce"], 5, model="m", seed=0)
    assert answer != answer_tokens([b"abcd"], 5, model="n", seed=0)
    assert answer != answer_tokens([b"abcd"], 5, model="m", seed=1)
    assert answer == answer_tokens([b"abcd"], 9, model="m", seed=0)[:5]


@given(st.lists(st.tuples(st.sampled_from(["user", "system"]), st.text()), min_size=1, max_size=4), st.text())
def test_a_conversation_that_goes_on_starts_with_all_the_tokens_it_had(messages, next_question):
    before = render_chat(messages)
    answer = answer_tokens(before, 7, model="m", seed=0)
    after = render_chat([*messages, ("assistant", b"".join(answer).decode()), ("user", next_question)])
    assert after[: len(before) + 7] == [*before, *answer]


def test_only_full_blocks_have_a_hash():
    tokens = [b"%d" % number for number in range(10)]
    assert len(hashes(tokens)) == 2
    assert hashes(tokens[:3]) == ()


def test_a_hash_stands_for_its_block_and_all_before_it():
    tokens = [b"%d" % number for number in range(12)]
    changed = [*tokens[:5], b"other", *tokens[6:]]
    assert hashes(tokens)[0] == hashes(changed)[0]
    assert hashes(tokens)[1] != hashes(changed)[1]
    assert hashes(tokens)[2] != hashes(changed)[2]


def test_adapters_and_salts_share_nothing():
    tokens = [b"%d" % number for number in range(4)]
    different = {
        hashes(tokens),
        hashes(tokens, lora_adapter="a"),
        hashes(tokens, cache_salt="a"),
        hashes(tokens, lora_adapter="a", cache_salt="a"),
    }
    assert len(different) == 4


def hashes(tokens, *, lora_adapter=None, cache_salt=None):
    return block_hashes(tokens, block_size=4, lora_adapter=lora_adapter, cache_salt=cache_salt)
