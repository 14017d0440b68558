# SPDX-License-Identifier: Apache-2.0
"""Log lines on standard error: text on a terminal, one JSON object per line otherwise."""

import json
import logging
import sys
from typing import TextIO, cast

import msgspec
import structlog

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
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ends: list[structlog.typing.Processor] = (
        [request_as_text, structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    )
    structlog.configure(
        processors=[*shared, *ends],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    return writer


def terminal(writer: LogWriter) -> LogWriter | None:
    """Return the writer if it writes to a terminal, else None."""
    return writer if sys.stderr.isatty() else None


def _to_json(event: dict[str, object], **_: object) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError):  # such as half a surrogate pair: values may be from clients
        return json.dumps({key: ascii(value) for key, value in event.items()})
