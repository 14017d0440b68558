# SPDX-License-Identifier: Apache-2.0
"""Files that may be read while something is only tried: those that are named, and no way around that."""

import pytest

from epp.framework.files import check_allowed, only_files, read_regular


@pytest.fixture
def files(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("named", "other", "below/one"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_only_named_files_and_those_below_named_directories_are_read(files):
    named, below = str(files / "named"), str(files / "below")
    with only_files([named], below=[below]):
        assert read_regular(files / "named", 100).data == b"named"
        assert read_regular(files / "below" / "one", 100).data == b"below/one"
        for path in (files / "other", files / "below" / ".." / "other"):
            with pytest.raises(PermissionError, match="only files of the configuration in effect"):
                read_regular(path, 100)
            with pytest.raises(PermissionError):
                check_allowed(path)
    assert read_regular(files / "other", 100).data == b"other"


def test_without_names_nothing_is_read(files):
    with only_files([]), pytest.raises(PermissionError):
        read_regular(files / "named", 100)
