"""Log lines on standard error: readable on a terminal, one JSON object a line elsewhere."""

import json
import logging
import sys
from typing import TextIO, cast

import msgspec
import structlog

from epp.observability.log_writer import LogWriter

_LEVELS = ((0, logging.WARNING), (3, logging.INFO))
"""Verbosity as in the `-v` flag: up to 0 warnings, up to 3 what an operator wants to read, beyond that everything."""


class FailureLog:
    """Logs the first failure of each plugin and kind of error: the next thousand would say the same."""

    def __init__(self) -> None:
        self._told: set[tuple[str, type[Exception]]] = set()

    def tell(self, plugin: str, error: Exception) -> None:
        """Log it with its traceback, unless one like it was logged before."""
        kind = (plugin, type(error))
        if kind not in self._told:
            self._told.add(kind)
            structlog.get_logger().error("plugin failed", plugin=plugin, error=str(error), exc_info=error)


def configure(verbosity: int = 2) -> LogWriter:
    """Set up structlog for the whole process; return what counts the lines that cannot be written."""
    writer = LogWriter(sys.stderr)
    level = next((level for limit, level in _LEVELS if verbosity <= limit), logging.DEBUG)
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ends: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
    )
    structlog.configure(
        processors=[*shared, *ends],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    return writer


def _to_json(event: dict[str, object], **_: object) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError):  # half a surrogate pair, say: what is logged may come from anywhere
        return json.dumps({key: ascii(value) for key, value in event.items()})
