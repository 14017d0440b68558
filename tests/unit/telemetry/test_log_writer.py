# SPDX-License-Identifier: Apache-2.0
"""A log line that cannot be written costs a number in a counter, and nothing else."""

import contextlib
import json
import os
import threading
from pathlib import Path

import pytest
import structlog

from epp.telemetry import logs
from epp.telemetry.logs import LogWriter


@pytest.fixture
def pipe():
    """Where a test reads, and the stream that writes there."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    with contextlib.suppress(OSError):  # closed by the test
        os.close(reader)


@pytest.fixture
def configured(pipe, monkeypatch):
    """The writer of all log lines."""
    monkeypatch.setattr("sys.stderr", pipe[1])
    yield logs.configure(5)
    structlog.reset_defaults()


def test_lines_arrive_in_order(pipe):
    reader, stream = pipe
    writer = LogWriter(stream)
    for number in range(100):
        writer.write(f"{number}\n")
    assert writer.settle(10)
    assert os.read(reader, 65536).split() == [str(number).encode() for number in range(100)]
    assert writer.lost == 0


def test_pipe_without_a_reader_loses_lines_and_raises_nothing(pipe):
    reader, stream = pipe
    os.close(reader)
    writer = LogWriter(stream)
    for _ in range(3):
        writer.write("line\n")
        assert writer.settle(10)
    assert writer.lost == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_full_device_loses_lines_and_raises_nothing():
    with Path("/dev/full").open("w") as full:
        writer = LogWriter(full)
        writer.write("line\n")
        assert writer.settle(10)
        assert writer.lost == 1


def test_reader_that_does_not_read_does_not_hold_up_the_writer(pipe):
    reader, stream = pipe
    writer = LogWriter(stream, max_queued=10)
    line = "x" * 65536 + "\n"  # more than a pipe holds
    for _ in range(100):
        writer.write(line)  # returns, though nothing is read
    assert writer.lost >= 80
    assert not writer.settle(0.01)
    drained = threading.Event()

    def drain() -> None:
        while not drained.is_set():
            os.read(reader, 1 << 20)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    assert writer.settle(10)
    drained.set()
    writer.write("last\n")
    thread.join(10)


def test_event_that_is_no_valid_text_is_logged_all_the_same(pipe, configured):
    structlog.get_logger().warning("odd", value="\udcff", thing=object)
    assert configured.settle(10)
    assert b"udcff" in os.read(pipe[0], 65536)


def test_lines_of_many_threads_are_all_written(pipe):
    reader, stream = pipe
    writer = LogWriter(stream)
    threads = [threading.Thread(target=lambda: [writer.write("x\n") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.settle(10)
    assert os.read(reader, 65536) == b"x\n" * 2000


def test_line_after_a_pause_wakes_the_writer(pipe):
    reader, stream = pipe
    writer = LogWriter(stream)
    for _ in range(3):
        writer.write("x\n")
        assert os.read(reader, 65536) == b"x\n"  # without `settle`: it comes by itself


def test_lines_have_the_time_in_utc_with_microseconds(pipe, configured, monkeypatch):
    times = iter((1_700_000_000_000_001_999, 1_700_000_000_999_999_999, 1_700_000_001_000_000_000))
    monkeypatch.setattr("epp.telemetry.logs.time.time_ns", lambda: next(times))
    for _ in range(3):
        structlog.get_logger().warning("odd")
    assert configured.settle(10)
    lines = [json.loads(line) for line in os.read(pipe[0], 65536).splitlines()]
    seconds = ["20.000001", "20.999999", "21.000000"]
    assert [(line["ts"], line["level"]) for line in lines] == [
        (f"2023-11-14T22:13:{each}Z", "warn") for each in seconds
    ]
