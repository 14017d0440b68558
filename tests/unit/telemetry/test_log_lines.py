# SPDX-License-Identifier: Apache-2.0
"""Keys of JSON log lines are those of llm-d-router, and text is for people."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from epp.telemetry import logs
from epp.telemetry.logs import time_stamp

Logged = Callable[[], list[str]]


@pytest.fixture
def logged(monkeypatch) -> Iterator[Callable[..., Logged]]:
    """Sets up log lines; what it returns has those that came since."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")

    def configure(verbosity: int = 2, **style: Any) -> Logged:
        monkeypatch.setattr("sys.stderr", stream)
        lines = logs.configure(verbosity, logs.LogStyle(**style))

        def written() -> list[str]:
            assert lines.settle(10)
            return os.read(reader, 65536).decode().splitlines()

        return written

    yield configure
    structlog.reset_defaults()
    stream.close()
    os.close(reader)


def test_lines_begin_with_the_keys_of_the_reference(logged):
    written = logged()
    structlog.get_logger().warning("odd", request_id="r1", model="m", target_model="t", objective="o", status=200)
    line = json.loads(written()[0])
    assert list(line) == [
        *("level", "ts", "logger", "caller", "msg"),
        *("x-request-id", "modelName", "targetModelName", "objectiveKey", "status"),
    ]
    assert (line["level"], line["logger"], line["msg"], line["x-request-id"]) == ("warn", __name__, "odd", "r1")
    assert re.fullmatch(r"telemetry/test_log_lines\.py:\d+", line["caller"])
    assert abs((datetime.fromisoformat(line["ts"]) - datetime.now(UTC)).total_seconds()) < 60


@pytest.mark.parametrize("encoder", ["json", "console"])
def test_line_of_an_error_is_without_a_traceback_where_none_are_wanted(logged, encoder):
    written = logged(encoder=encoder, tracebacks=False)
    structlog.get_logger().error("broken", exc_info=ValueError("seven"))
    (line,) = written()
    assert "seven" not in line


def test_line_of_an_error_has_its_stack(logged):
    written = logged()
    try:
        int("seven")
    except ValueError as error:
        structlog.get_logger().exception("broken", error=str(error))
    line = json.loads(written()[0])
    assert (line["level"], line["error"]) == ("error", "invalid literal for int() with base 10: 'seven'")
    assert line["stacktrace"].endswith("ValueError: invalid literal for int() with base 10: 'seven'")


def test_every_call_has_its_own_place(logged):
    written = logged()
    log = structlog.get_logger()
    log.info("one")
    log.info("two")
    log.bind(more=1).info("three")
    callers = [json.loads(line)["caller"] for line in written()]
    numbers = [int(caller.partition(":")[2]) for caller in callers]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


def test_console_is_text_without_colours_where_it_is_no_terminal(logged):
    written = logged(encoder="console")
    structlog.get_logger().info("ready", endpoints=3)
    (line,) = written()
    assert "\x1b" not in line
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[info +\] ready +endpoints=3", line)


def test_errors_alone(logged):
    written = logged(logs.ERRORS_ALONE)
    log = structlog.get_logger()
    log.warning("not this")
    log.error("this")
    assert [json.loads(line)["msg"] for line in written()] == ["this"]


@pytest.mark.parametrize(
    ("encoding", "of"),
    [
        ("epoch", float),
        ("millis", lambda stamp: stamp / 1e3),
        ("nano", lambda stamp: stamp / 1e9),
        ("iso8601", lambda stamp: datetime.fromisoformat(stamp).timestamp()),
        ("rfc3339", lambda stamp: datetime.fromisoformat(stamp).timestamp()),
        ("rfc3339nano", lambda stamp: datetime.fromisoformat(stamp).timestamp()),
        (None, lambda stamp: datetime.fromisoformat(stamp).timestamp()),
    ],
)
def test_every_time_encoding_tells_the_same_time(encoding, of):
    assert of(time_stamp(encoding)()) == pytest.approx(time.time(), abs=5)
