# SPDX-License-Identifier: Apache-2.0
"""Long JSON texts: read in slices with the same outcome as at once, valid or not, wherever the slices end."""

import json
import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.framework import json_scan, long_json
from epp.framework.json_cuts import string_cut
from epp.framework.json_scan import members
from epp.framework.long_json import Envelope, decoded_text

STRINGS = st.text('a"\\/\b\n\x7fé€😀u0123d', max_size=60)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**90, 1e-300, -0.0])
VALUES = st.recursive(
    STRINGS | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)
SPACES = st.sampled_from(["", "", " ", "\n\t ", " " * 40])
KEYS = st.sampled_from(["model", "messages", "tools", "m\\u006fdel", "mo\\u0064e", "options", "odel"])
DAMAGE = st.sampled_from(
    [
        b"",
        b"x",
        b'"',
        b"\\",
        b",",
        b":",
        b"{",
        b"]",
        b"}",
        b"\xff",
        b"\n",
        b"\\u12",
        b"\\ud83d",
        b"1e",
        b"-",
        b" ",
        b"tr",
    ]
)


class Options(msgspec.Struct):
    limit: int | None = None


class Fields(msgspec.Struct):
    model: str | None = None
    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    options: Options | None = None


READ = Envelope(Fields)


@st.composite
def values(draw):
    """JSON of any value, with spaces, and with strings in several spellings."""
    found = draw(VALUES)
    between = draw(SPACES)
    return json.dumps(found, separators=(between + "," + between, ":" + between), ensure_ascii=draw(st.booleans()))


@st.composite
def objects(draw):
    space = draw(SPACES)
    found = draw(
        st.lists(
            st.tuples(KEYS, values())
            | st.tuples(STRINGS.map(lambda key: json.dumps(key)[1:-1]), values())
            | st.tuples(st.just("model"), STRINGS.map(json.dumps)),
            max_size=8,
        )
    )
    written = ",".join(f'{space}"{key}"{space}:{space}{value}{space}' for key, value in found)
    return f"{space}{{{written}}}{space}".encode()


@st.composite
def texts(draw):
    """Objects, and what is left of them: cut, with something else in between, or doubled in part."""
    found = draw(objects() | objects() | values().map(str.encode))
    at, until = sorted(draw(st.tuples(*[st.integers(0, len(found))] * 2)))
    return draw(
        st.sampled_from([found, found, found[:at], found[:at] + found[until:], found[:until] + found[at:]])
        | DAMAGE.map(lambda other: found[:at] + other + found[at:])
    )


def ran(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def as_skipped(text):
    """Return an error as msgspec words it in values that it skips: it has other words for those it decodes."""
    text = text.replace("escaped utf-16 surrogate pair", "hex escape")
    return re.sub(
        r"invalid escape character in string \(byte (\d+)\)",
        lambda found: f"invalid escaped character (byte {int(found[1]) - 1})",
        text,
    )


def outcome(read):
    try:
        found = read()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return type(error).__name__, as_skipped(str(error))
    return [bytes(each) if isinstance(each, msgspec.Raw) else each for each in msgspec.structs.astuple(found)]


@pytest.fixture(scope="module", autouse=True)
def _all_are_long():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "LONG_BYTES", 0)
        yield


def sliced(text, slice_bytes, run_bytes, read):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "SLICE_BYTES", slice_bytes)
        for module in (json_scan, long_json):
            patch.setattr(module, "RUN_BYTES", run_bytes)
        return read(text)


SIZES = st.sampled_from([16, 17, 18, 19, 20, 23, 31, 64, 1000])


@settings(deadline=None, max_examples=300)
@given(texts(), SIZES, SIZES)
@example(b'{"model":"m","x":' + b"1" * 100 + b" 2}", 16, 16)
@example(b'{"model":"m","x":0' + b"0" * 100 + b"}", 16, 16)
@example(b'{"model":"m","x":1.' + b"0" * 100 + b".5}", 16, 16)
@example(b'{"model":"m","x":1e' + b"0" * 100 + b"e5}", 16, 16)
@example(b'{"model":"m","x":[1,' + b" " * 100 + b"]}", 16, 16)
@example(b'{"model"' + b" " * 100 + b':"m"' + b" " * 100 + b"}", 16, 16)
@example(b'{"x":"' + rb"\ud83d\ude00" * 20 + b'"}', 16, 17)
@example(b'{"x":"' + b"\\\\" * 50 + b'"}', 16, 17)
@example(b'{"x":' + b"[" * 100 + b"]" * 100 + b"}", 16, 16)
@example(b'{"x":' + b"t" * 100 + b"}", 16, 16)
def test_sliced_reading_has_the_outcome_of_reading_at_once(text, slice_bytes, run_bytes):
    at_once = outcome(lambda: msgspec.json.decode(text, type=Fields))
    in_slices = outcome(lambda: sliced(text, slice_bytes, run_bytes, lambda found: ran(READ.read(found))))
    if isinstance(at_once, list) or isinstance(in_slices, list) or at_once[0] == in_slices[0] == "DecodeError":
        assert in_slices == at_once
    # else of several errors, either may be named


@settings(deadline=None)
@given(STRINGS, st.booleans(), st.integers(16, 40))
def test_text_is_decoded_in_parts_as_a_whole(text, ascii_only, run_bytes):
    raw = json.dumps(text * 5, ensure_ascii=ascii_only).encode()
    parts = []
    sliced(raw, 16, run_bytes, lambda found: ran(decoded_text(found, parts.append)))
    assert b"".join(parts).decode() == text * 5


@settings(deadline=None)
@given(STRINGS, st.booleans(), st.integers(0, 100))
def test_string_is_cut_outside_of_escapes_and_characters(text, ascii_only, wanted):
    raw = json.dumps(text * 5, ensure_ascii=ascii_only).encode()[1:-1]
    cut = string_cut(raw, min(wanted, len(raw)))
    assert cut - wanted <= 16
    assert json.loads(b'"%b"' % raw[:cut]) + json.loads(b'"%b"' % raw[cut:]) == text * 5


@settings(deadline=None, max_examples=300)
@given(objects(), SIZES)
def test_all_members_of_a_name_are_found_in_order(text, slice_bytes):
    found = []
    sliced(
        text,
        slice_bytes,
        slice_bytes,
        lambda text: ran(members(text, {"model", "tools"}, lambda *each: found.append(each))),
    )
    wanted = [
        pair for pair in json.JSONDecoder(object_pairs_hook=list).decode(text.decode()) if pair[0] in {"model", "tools"}
    ]
    plain = json.JSONDecoder(object_pairs_hook=list)
    assert [(name, plain.decode(text[start:end].decode())) for name, start, end in found] == wanted
