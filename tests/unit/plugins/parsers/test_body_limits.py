# SPDX-License-Identifier: Apache-2.0
"""Limits on JSON bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.errors import MalformedBodyError
from epp.plugins.parsers import json_parser
from epp.plugins.parsers.json_parser import (
    MOST_ESCAPES,
    MOST_MODEL,
    MOST_TEXT,
    MOST_TOKEN_IDS,
    MOST_VALUES,
    count_values,
)
from epp.plugins.parsers.prompt import MOST_READ_IDS
from tests.support.apis import parse

VALUES, IDS = "more than 65536 JSON values", "more than 1048576 token ids"
TEXT = "more than 8388608 characters of text"
NAME = 'more than 65536 characters in "model"'
MESSAGE = b'{"role":"user","content":"x"}'


def array(element: bytes, count: int) -> bytes:
    return b"[" + ((element + b",") * count)[:-1] + b"]"


def chat(messages: bytes) -> bytes:
    return b'{"model":"m","messages":' + messages + b"}"


@pytest.mark.parametrize(
    ("suffix", "body", "limit"),
    [
        ("chat/completions", chat(array(MESSAGE, 32_769)), VALUES),  # two commas a message
        ("chat/completions", chat(b"[" + MESSAGE[:-4] + array(b'{"x":1}', 65_538) + b"}]"), VALUES),
        ("chat/completions", b'{"model":"m","tools":' + array(b"{}", 65_538) + b"}", VALUES),
        ("messages", chat(array(MESSAGE, 32_769)), VALUES),
        ("responses", b'{"model":"m","input":' + array(b"{}", 65_538) + b"}", VALUES),
        ("completions", b'{"model":"m","prompt":' + array(b"1", MOST_TOKEN_IDS + 2) + b"}", IDS),
        ("completions", b'{"model":"m","prompt":' + array(b"[1]", 65_538) + b"}", VALUES),
        ("completions", b'{"prompt":' + array(b"1234567890", MOST_TOKEN_IDS) + b"}", "10485760 bytes of token ids"),
        ("embeddings", b'{"input":' + array(array(b"1", 4096), 81) + b"}", "327680 token ids in several lists"),
        ("completions", b'{"model":"m","prompt":[1],"x":' + array(b"1", 65_538) + b"}", VALUES),
        ("embeddings", b'{"model":"m","input":' + array(b'""', 65_538) + b"}", VALUES),
        ("embeddings", b'{"model":"m","input":"a","messages":' + array(b"{}", 65_538) + b"}", VALUES),
        ("/generate", b'{"input_ids":' + array(b"1", MOST_TOKEN_IDS + 2) + b"}", IDS),
        ("inference/v1/generate", b'{"token_ids":' + array(b"1", 1_200_000) + b"}", "JSON values and token ids"),
        ("completions", b'{"model":"m","prompt":"' + b"x" * (MOST_TEXT + 1) + b'"}', TEXT),
        ("images/generations", b'{"prompt":"' + b"x" * (MOST_TEXT + 1) + b'"}', TEXT),
        ("completions", b'{"prompt":"' + b"\\n" * (MOST_ESCAPES + 1) + b'"}', "more than 2097152 escapes in strings"),
        ("completions", b'{"prompt":"a","model":"' + b"m" * (MOST_MODEL + 1) + b'"}', NAME),
    ],
)
def test_body_beyond_a_limit_is_refused_with_its_name(suffix, body, limit):
    with pytest.raises(MalformedBodyError) as refused:
        parse(suffix, body)
    assert limit in str(refused.value)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("suffix", "field"),
    [("completions", "prompt"), ("/generate", "input_ids"), ("inference/v1/generate", "token_ids")],
)
def test_longest_context_of_token_ids_is_read(suffix, field):
    found = parse(suffix, {"model": "m", field: list(range(MOST_TOKEN_IDS))})
    assert found.prompt_tokens == MOST_TOKEN_IDS
    read = (MOST_READ_IDS - 1).to_bytes(4, "little")
    assert found.prompt[MOST_READ_IDS * 4 - 4 : MOST_READ_IDS * 4 + 4] == read + bytes(4)  # zeros follow


def test_many_token_ids_do_not_change_the_rest_of_the_body():
    ids = array(b"7", 100_000)
    for body in (
        b'{"model":"m","prompt": ' + ids + b' ,"max_tokens":5}',
        b'{"prompt":[1],"max_tokens":5,"model":"m","prompt":' + ids + b"}",  # the last one counts
    ):
        found = parse("completions", body)
        assert (found.model, found.max_output_tokens, found.prompt_tokens) == ("m", 5, 100_000)
        assert (found.is_token_ids, found.prompt) == (True, (7).to_bytes(4, "little") * 100_000)


def test_numbers_and_quotes_inside_of_a_text_do_not_count():
    table = json.dumps([[1, 2, "a"]] * 60_000)  # JSON in a text: 360,000 commas
    body = {"model": "m", "messages": [{"role": "user", "content": table}]}
    assert parse("chat/completions", body).prompt == f"user\n{table}\n".encode()


def test_image_of_thirty_megabytes_is_read():
    url = {"url": "data:image/png;base64," + "QUJD" * 7_500_000}
    part = {"type": "image_url", "image_url": url}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    assert parse("chat/completions", body).media_items == 1


@given(
    st.recursive(
        st.none() | st.integers() | st.text('a",\\[]{}é:\n', max_size=8),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text('a",\\', max_size=4), inner, max_size=6),
        max_leaves=60,
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_commas_outside_of_strings_are_counted_however_the_text_is_cut(value, window, ascii_only):
    def commas(found) -> int:
        if isinstance(found, dict):
            found = list(found.values())
        if not isinstance(found, list):
            return 0
        return max(len(found) - 1, 0) + sum(map(commas, found))

    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parser, "_WINDOW_BYTES", window)
        assert count_values(text, MOST_VALUES) == commas(value)
