# SPDX-License-Identifier: Apache-2.0
"""Log lines on standard error: text on a terminal, one JSON object per line otherwise."""

import logging
import sys
from dataclasses import dataclass
from typing import Literal, TextIO, TypeAlias, cast

import structlog
from structlog.typing import EventDict

from epp.telemetry.log_lines import JsonLines, TimeStamp, time_stamp
from epp.telemetry.log_writer import LogWriter
from epp.telemetry.request_line import request_as_text

ERRORS_ALONE = -1
"""The verbosity at which not even warnings are logged."""
_LEVELS = ((ERRORS_ALONE, logging.ERROR), (0, logging.WARNING), (3, logging.INFO))
"""Largest verbosity (the `-v` flag) of each level; debug above."""

TimeEncoding: TypeAlias = Literal["epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"]


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How lines look."""

    encoder: Literal["json", "console"] | None = None
    """None for text on a terminal, and JSON elsewhere."""
    time_encoding: TimeEncoding | None = None
    """None for RFC 3339 with microseconds."""

    @property
    def is_text(self) -> bool:
        """Whether lines are text for people."""
        return sys.stderr.isatty() if self.encoder is None else self.encoder == "console"


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


def configure(verbosity: int = 2, style: LogStyle = LogStyle()) -> LogWriter:
    """Set up structlog for the whole process; return the writer, which counts lost lines."""
    writer = LogWriter(sys.stderr)
    level = next((level for limit, level in _LEVELS if verbosity <= limit), logging.DEBUG)
    stamp = time_stamp(style.time_encoding)
    processors: list[structlog.typing.Processor] = [JsonLines(stamp)]
    if style.is_text:
        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        processors = [structlog.processors.add_log_level, _Stamped(stamp), request_as_text, console]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    return writer


def terminal(writer: LogWriter, style: LogStyle = LogStyle()) -> LogWriter | None:
    """Return the writer if it writes text to a terminal, else None."""
    return writer if sys.stderr.isatty() and style.is_text else None


class _Stamped:
    """Adds the time of an event."""

    def __init__(self, stamp: TimeStamp) -> None:
        self._stamp = stamp

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Add it; structlog calls this for every event, in any thread."""
        event["timestamp"] = self._stamp()
        return event
