# SPDX-License-Identifier: Apache-2.0
"""Log lines on standard error: text on a terminal, one JSON object per line otherwise."""

import json
import logging
import sys
import time
from functools import partial
from typing import TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict

from epp.observability.log_writer import LogWriter
from epp.observability.request_line import request_as_text

_LEVELS = ((0, logging.WARNING), (3, logging.INFO))
"""Largest verbosity (the `-v` flag) of each level; debug above."""


class FailureLog:
    """Logs the first failure of each plugin and kind; repetitions would hide other lines."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, object]] = set()

    def log(self, plugin: str, error: Exception, problem: str) -> None:
        """Log the error with its traceback, unless this plugin has had one of its type."""
        if self._is_first(plugin, type(error)):
            structlog.get_logger().error("plugin failed", plugin=plugin, error=problem, exc_info=error)

    def warn(self, plugin: str, problem: str, count: int) -> None:
        """Log a problem with that many results, unless this plugin has had it before."""
        if self._is_first(plugin, problem):
            structlog.get_logger().warning(problem, plugin=plugin, count=count)

    def _is_first(self, plugin: str, kind: object) -> bool:
        first = (plugin, kind) not in self._logged
        self._logged.add((plugin, kind))
        return first


def configure(verbosity: int = 2) -> LogWriter:
    """Set up structlog for the whole process; return the writer, which counts lost lines."""
    writer = LogWriter(sys.stderr)
    level = next((level for limit, level in _LEVELS if verbosity <= limit), logging.DEBUG)
    stamp = _TimeStamp()
    processors: list[structlog.typing.Processor] = (
        [structlog.processors.add_log_level, stamp, request_as_text, structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [partial(_json_line, stamp)]
    )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    return writer


def terminal(writer: LogWriter) -> LogWriter | None:
    """Return the writer if it writes to a terminal, else None."""
    return writer if sys.stderr.isatty() else None


class _TimeStamp:
    """Adds the time of an event, in UTC with microseconds; the text of the second is kept for the next event."""

    def __init__(self) -> None:
        self._last = 0, ""

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Add it; structlog calls this for every event, in any thread."""
        second, micros = divmod(time.time_ns() // 1000, 1_000_000)
        known, text = self._last
        if second != known:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._last = second, text
        event["timestamp"] = f"{text}.{micros:06}Z"
        return event


def _json_line(stamp: _TimeStamp, logger: object, method: str, event: EventDict) -> str:
    """Return an event as a line: one function instead of a chain, since every request has a line."""
    stamp(logger, method, structlog.processors.add_log_level(logger, method, event))
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError):  # such as half a surrogate pair: values may be from clients
        return json.dumps({key: ascii(value) for key, value in event.items()})
