# SPDX-License-Identifier: Apache-2.0
"""A file that parameters name stays in effect in its last good version, whatever is written to it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.files import UNCHANGED_SECONDS
from epp.runtime.followed_files import LIMIT_BYTES, LastGoodFile, ParsedFile, changes
from tests.support.config_files import ConfigMap

GOOD, FAULTY, BROKEN = "good", "faulty", "broken"


def parse(content: bytes, _path: Path) -> ParsedFile[str]:
    """Return the text; versions that begin with `faulty` have a mistake, those with `broken` say nothing."""
    text = content.decode()
    if text.startswith(BROKEN):
        raise ValueError("line 1: broken")
    return ParsedFile(text, 1, ("line 1: faulty",) if text.startswith(FAULTY) else ())


versions = st.lists(st.tuples(st.sampled_from([GOOD, FAULTY, BROKEN, None]), st.integers(0, 2)), max_size=12)


@given(first=st.sampled_from([GOOD, FAULTY]), following=versions)
def test_last_good_version_counts_and_a_faulty_one_only_where_none_was_good(tmp_path_factory, first, following):
    path = tmp_path_factory.mktemp("files") / "table"
    path.write_text(expected := first)
    state = LastGoodFile.first(str(path), "prices", parse)
    now = 0.0
    for kind, number in following:
        path.unlink(missing_ok=True)
        if kind is not None:
            path.write_text(f"{kind}{number}")
        now += 2 * UNCHANGED_SECONDS
        state = state.after(now).after(now + UNCHANGED_SECONDS)
        assert state.after(now + UNCHANGED_SECONDS) is state
        if kind == GOOD or (kind == FAULTY and expected.startswith(FAULTY)):
            expected = f"{kind}{number}"
        assert state.parsed is not None
        assert state.parsed.value == expected
        assert bool(state.problems) is (kind != GOOD)


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (lambda path: path.write_text(BROKEN), r"prices: '.*table': line 1: broken"),
        (lambda path: path.write_bytes("prices".encode("utf-16")), "it is not text in UTF-8: save it in that encoding"),
        (os.mkfifo, "it is not a regular file: name one"),
        (os.mkdir, "it is a directory: name"),
        (lambda path: path.write_bytes(b"x" * (LIMIT_BYTES + 1)), "has more than 16777216 bytes"),
    ],
    ids=["says nothing", "another encoding", "pipe", "directory", "too large"],
)
def test_what_cannot_be_used_is_refused_at_the_start(tmp_path, put, why):
    put(tmp_path / "table")
    with pytest.raises(ValueError, match=why):
        LastGoodFile.first(str(tmp_path / "table"), "prices", parse)


def test_swapped_directory_of_a_config_map_is_followed(tmp_path):
    mounted = ConfigMap(tmp_path, prices=f"{GOOD} one")
    state = LastGoodFile.first(str(tmp_path / "prices.yaml"), "prices", parse)
    mounted.update(prices=f"{GOOD} two")
    assert state.after(0.0).parsed == ParsedFile("good two", 1)


async def test_new_version_of_equal_time_and_size_is_noticed_at_the_next_check(tmp_path):
    path = tmp_path / "table"
    path.write_text("good 1")
    state = LastGoodFile.first(str(path), "prices", parse)
    before = path.stat()
    path.write_text("good 2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await anext(changes())
    following = state.after(0.0)
    assert "it was written in place" in following.problems[0].reason
