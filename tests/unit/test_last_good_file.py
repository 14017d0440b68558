# SPDX-License-Identifier: Apache-2.0
"""A file that parameters name stays in effect in its last good version, whatever is written to it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.files import UNCHANGED_SECONDS
from epp.runtime.followed_files import LIMIT_BYTES, LastGoodFile, ParsedFile

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


def test_file_that_says_nothing_is_refused_at_the_start(tmp_path):
    path = tmp_path / "table"
    path.write_text(BROKEN)
    with pytest.raises(ValueError, match=r"prices: '.*table': line 1: broken"):
        LastGoodFile.first(str(path), "prices", parse)


def test_file_in_another_encoding_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "table").write_bytes("prices".encode("utf-16"))
    with pytest.raises(ValueError, match="it is no text in UTF-8: save it as that"):
        LastGoodFile.first(str(tmp_path / "table"), "prices", parse)


def test_pipes_directories_and_files_beyond_the_limit_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "pipe", "it is no regular file: name one"), (tmp_path, "it is a directory: name")):
        with pytest.raises(ValueError, match=why):
            LastGoodFile.first(str(path), "prices", parse)
    (tmp_path / "large").write_bytes(b"x" * (LIMIT_BYTES + 1))
    with pytest.raises(ValueError, match="has more than 16777216 bytes"):
        LastGoodFile.first(str(tmp_path / "large"), "prices", parse)


def test_swapped_directory_of_a_config_map_is_followed(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prices.yaml").write_text(f"{GOOD} {name}")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "prices.yaml").symlink_to("..data/prices.yaml")
    state = LastGoodFile.first(str(tmp_path / "prices.yaml"), "prices", parse)
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    after = state.after(0.0)
    assert after.parsed == ParsedFile("good two", 1)
