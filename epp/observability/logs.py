"""Log lines on standard error: text on a terminal, one JSON object per line otherwise."""

import json
import logging
import sys
from typing import TextIO, cast

import msgspec
import structlog

from epp.observability.log_writer import LogWriter

_LEVELS = ((0, logging.WARNING), (3, logging.INFO))
"""Largest verbosity (the `-v` flag) of each level; debug above."""


class FailureLog:
    """Logs the first failure of each plugin and type of error; repetitions would hide other lines."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, type[Exception]]] = set()

    def log(self, plugin: str, error: Exception) -> None:
        """Log the error with its traceback, unless this plugin has had one of its type."""
        kind = (plugin, type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            structlog.get_logger().error("plugin failed", plugin=plugin, error=str(error), exc_info=error)


def configure(verbosity: int = 2) -> LogWriter:
    """Set up structlog for the whole process; return the writer, which counts lost lines."""
    writer = LogWriter(sys.stderr)
    level = next((level for limit, level in _LEVELS if verbosity <= limit), logging.DEBUG)
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ends: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
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
