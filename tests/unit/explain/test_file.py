# SPDX-License-Identifier: Apache-2.0
"""The file of records: whole lines, bounded, and nothing waits for the disk."""

import os
import resource
import signal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.explain import storage as decision_file
from epp.explain.storage import DecisionFile
from epp.framework import ConfigurationError


def opened(path: Path, *, most_bytes: int = 1_000_000, count: int = 5) -> DecisionFile:
    return DecisionFile(path, most_bytes=most_bytes, count=count)


def write(path: Path, *lines: bytes, **options) -> DecisionFile:
    """Write some lines and close the file."""
    file = opened(path, **options)
    for line in lines:
        file.write(line)
    file.close()
    return file


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(decision_file, "_GATHER_SECONDS", 0.0)


def test_lines_are_appended_in_order_to_a_file_that_is_not_for_everybody(tmp_path):
    path = tmp_path / "decisions.jsonl"
    write(path, b"1", b"2")
    file = write(path, b"3")
    assert path.read_bytes() == b"1\n2\n3\n"
    assert path.stat().st_mode & 0o007 == 0
    assert (file.lost, file.problem) == (0, "")


@pytest.mark.parametrize(("count", "left"), [(3, {"d": b"4", "d.1": b"3", "d.2": b"2"}), (1, {"d": b"4"})])
def test_full_file_is_moved_and_the_oldest_removed(tmp_path, count, left):
    for number in range(5):
        write(tmp_path / "d", b"%d" % number * 9, most_bytes=10, count=count)
    assert {each.name: each.read_bytes()[:1] for each in tmp_path.iterdir()} == left


def test_files_stay_within_their_size_however_much_is_written_at_once(tmp_path):
    path = tmp_path / "d"
    file = write(path, *(b"%09d" % number for number in range(100)), most_bytes=35, count=4)
    sizes = {each.name: each.stat().st_size for each in tmp_path.iterdir()}
    assert sizes.keys() == {"d", "d.1", "d.2", "d.3"}
    assert max(sizes.values()) <= 35
    assert path.read_bytes().endswith(b"000000099\n")
    assert file.lost == 0


def test_line_that_a_crash_has_cut_stays_alone(tmp_path):
    path = tmp_path / "d"
    path.write_bytes(b'{"half')
    write(path, b"{}")
    assert path.read_bytes() == b'{"half\n{}\n'


def test_file_that_others_moved_is_begun_anew(tmp_path):
    path = tmp_path / "d"
    file = opened(path)
    file.write(b"1")
    while not path.read_bytes():
        os.sched_yield()
    path.rename(tmp_path / "moved")
    file.write(b"2")
    file.close()
    assert ((tmp_path / "moved").read_bytes(), path.read_bytes()) == (b"1\n", b"2\n")


def test_full_disk_loses_whole_lines_says_so_once_and_goes_on(tmp_path, monkeypatch):
    """The limit of this process on the size of files stands for a full disk: writes are cut short, then fail."""
    path = tmp_path / "d"
    file = opened(path)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with capture_logs() as lines:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
            file.write(b"0123456789")
            while file.lost == 0:  # 11 bytes a line: the second one does not fit
                file.write(b"0123456789")
                os.sched_yield()
            assert "File too large" in file.problem
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        while file.problem:
            file.write(b"after")
            os.sched_yield()
        file.close()
    assert set(path.read_bytes().splitlines()) == {b"0123456789", b"after"}
    assert [line["event"] for line in lines] == ["decisions are not written", "decisions are written again"]
    assert "remedy" in lines[0]


def test_lines_beyond_those_that_may_wait_are_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(decision_file, "_MOST_QUEUED_BYTES", 10)
    file = opened(tmp_path / "d")
    file.write(b"x" * 11)
    assert file.lost == 1
    file.close()
    file.write(b"x")
    assert file.lost == 2


@pytest.mark.parametrize("name", ["missing/d", "a-directory", "a-pipe"])
def test_file_that_cannot_be_written_is_refused_at_the_start(tmp_path, name):
    (tmp_path / "a-directory").mkdir()
    os.mkfifo(tmp_path / "a-pipe")
    with pytest.raises(ConfigurationError, match=r"^--decision-file: .* cannot be written: .*; name a file in"):
        opened(tmp_path / name)


def test_directory_that_refuses_new_files_loses_lines_instead_of_growing(tmp_path):
    path = tmp_path / "d"
    write(path, b"1" * 9, most_bytes=10)
    file = opened(path, most_bytes=10, count=2)
    (tmp_path / "d.1").mkdir()
    (tmp_path / "d.1" / "full").touch()
    file.write(b"2" * 9)
    file.close()
    assert file.lost == 1
    assert path.stat().st_size == 10
