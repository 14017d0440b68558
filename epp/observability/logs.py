"""Log lines on standard error: readable on a terminal, one JSON object a line elsewhere."""

import logging
import sys

import msgspec
import structlog

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


def configure(verbosity: int = 2) -> None:
    """Set up structlog for the whole process."""
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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _to_json(event: dict[str, object], **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
