# SPDX-License-Identifier: Apache-2.0
"""Log lines on standard error: text on a terminal, JSON otherwise, written by a separate thread."""

import atexit
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import CodeType, FrameType
from typing import Literal, TextIO, TypeAlias, cast

import msgspec
import structlog
from structlog.typing import EventDict

from epp.framework.headers import REQUEST_ID
from epp.telemetry.request_log import request_as_text

TimeStamp: TypeAlias = Callable[[], str | int | float]
"""Returns the current time for a log line."""

_KEYS: Mapping[str, str] = {
    "exception": "stacktrace",
    "model": "modelName",
    "objective": "objectiveKey",
    "request_id": REQUEST_ID,
    "target_model": "targetModelName",
}
"""Keys of llm-d-router for fields with other names in this program."""
_SKIPPED_FRAMES = 2


def _rfc3339() -> str:
    now = datetime.fromtimestamp(time.time_ns() // 1000 / 1e6, UTC)
    return f"{now.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


_STAMPS: Mapping[str, TimeStamp] = {
    "epoch": time.time,
    "millis": lambda: time.time() * 1e3,
    "nano": time.time_ns,
    "iso8601": lambda: datetime.now(UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S.%f%z"),
    "rfc3339": lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
}


def time_stamp(encoding: str | None) -> TimeStamp:
    """Return the function for a time encoding of zap; None for the default, RFC 3339 with microseconds."""
    return _STAMPS.get(encoding or "", _rfc3339)


class JsonLines:
    """Renders events as JSON lines in one function instead of a chain, because every request has a line."""

    def __init__(self, stamp: TimeStamp) -> None:
        self._stamp = stamp
        self._callers: dict[tuple[int, int], tuple[CodeType, str, str]] = {}
        """Callers by id of the code object, which the entry keeps alive, and line."""

    def __call__(self, logger: object, method: str, event: EventDict) -> str:
        """Return the line of an event; structlog calls this in any thread."""
        name, caller = self._caller()
        if "exc_info" in event:
            event = structlog.processors.format_exc_info(logger, method, event)
        line = {
            "level": "error" if method == "exception" else "warn" if method == "warning" else method,
            "ts": self._stamp(),
            "logger": name,
            "caller": caller,
            "msg": event.pop("event"),
        }
        for key, value in event.items():
            line[_KEYS.get(key, key)] = value
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (TypeError, ValueError):  # such as a lone surrogate in a value from a client
            return json.dumps({key: ascii(value) for key, value in line.items()})

    def _caller(self) -> tuple[str, str]:
        """Return the module and the place of the log call: the first frame outside of structlog."""
        frame: FrameType | None = sys._getframe(_SKIPPED_FRAMES)  # noqa: SLF001  inspect.stack costs a hundred times as much
        while frame is not None and frame.f_globals.get("__name__", "").startswith("structlog"):
            frame = frame.f_back
        if frame is None:
            return "", ""
        code, number = frame.f_code, frame.f_lineno
        try:
            _, name, caller = self._callers[id(code), number]
        except KeyError:
            name = frame.f_globals.get("__name__", "")
            caller = f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{number}"
            self._callers[id(code), number] = code, name, caller
        return name, caller


_MAX_QUEUED = 10_000
"""Most queued lines; further ones are dropped."""
_GATHER_SECONDS = 0.02
"""Time in which lines are gathered for one write, which costs less than a wake-up for each line."""
_FLUSH_SECONDS = 1.0
"""Longest wait for queued lines at the end of the process."""


class LogWriter(io.TextIOBase):
    """A text stream whose `write` never raises or blocks; lines that cannot be written are counted as lost."""

    def __init__(self, stream: TextIO, *, max_queued: int = _MAX_QUEUED) -> None:
        self._stream = stream
        self._max_queued = max_queued
        self._queue: SimpleQueue[str | Event] = SimpleQueue()
        """Lines, and events to be set when the lines before them are written."""
        self._hurry = Event()
        self._lock = Lock()
        self._thread: Thread | None = None
        self.lost = 0
        """Lines that could not be written."""
        self._divert: Callable[[str], object] | None = None

    def write(self, text: str) -> int:
        """Queue a text; drop it if the queue is full."""
        if self._queue.qsize() >= self._max_queued:
            self._lose(1)
            return len(text)
        self._queue.put(text)
        if self._thread is None:
            self._start()
        return len(text)

    def divert(self, to: Callable[[str], object] | None) -> None:
        """Send lines to a function, in the writer's thread, instead of the stream; None for the stream again."""
        self._divert = to

    def flush(self) -> None:
        """Do nothing: lines are flushed when they are written."""

    def settle(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Wait for at most this time until all lines are written or lost; return whether they are."""
        if self._thread is None:
            return True
        done = Event()
        self._queue.put(done)
        self._hurry.set()
        try:
            return done.wait(seconds)
        finally:
            self._hurry.clear()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._drain, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.settle)

    def _drain(self) -> None:
        while True:
            first = self._queue.get()
            self._hurry.wait(_GATHER_SECONDS)
            queued = [first, *(self._queue.get() for _ in range(self._queue.qsize()))]
            lines = [each for each in queued if isinstance(each, str)]
            try:
                self._write("".join(lines))
            except (OSError, ValueError):  # no reader, no space, closed
                self._lose(len(lines))
            for each in queued:
                if isinstance(each, Event):
                    each.set()

    def _lose(self, count: int) -> None:
        with self._lock:
            self.lost += count

    def _write(self, lines: str) -> None:
        """Write lines past the stream's buffer, which would keep lines that failed and write them again."""
        if self._divert is not None:
            self._divert(lines)
            return
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._stream.write(lines)
            return
        write_all(descriptor, lines.encode("utf-8", "backslashreplace"))


def write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


ERRORS_ALONE = -1
"""Verbosity at which only errors are logged."""
_LEVELS = ((ERRORS_ALONE, logging.ERROR), (0, logging.WARNING), (3, logging.INFO))
"""Highest verbosity (the `-v` flag) of each level; above these, debug."""

TimeEncoding: TypeAlias = Literal["epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"]


@dataclass(frozen=True, slots=True)
class LogStyle:
    encoder: Literal["json", "console"] | None = None
    """None for text on a terminal and JSON otherwise."""
    time_encoding: TimeEncoding | None = None
    """None for RFC 3339 with microseconds."""
    tracebacks: bool = True
    """Whether log lines of errors have tracebacks."""

    @property
    def is_text(self) -> bool:
        return sys.stderr.isatty() if self.encoder is None else self.encoder == "console"


def configure(verbosity: int = 2, style: LogStyle = LogStyle(), *, worker: str = "") -> LogWriter:
    """Set up structlog for the whole process; return the writer. With `worker`, each line has this process number."""
    writer = LogWriter(sys.stderr)
    level = next((level for limit, level in _LEVELS if verbosity <= limit), logging.DEBUG)
    stamp = time_stamp(style.time_encoding)
    processors: list[structlog.typing.Processor] = [JsonLines(stamp)]
    if style.is_text:

        def stamped(_logger: object, _method: str, event: EventDict) -> EventDict:
            return {**event, "timestamp": stamp()}

        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        processors = [structlog.processors.add_log_level, stamped, request_as_text, console]
    if not style.tracebacks:
        processors.insert(0, _without_traceback)
    processors.insert(0, structlog.contextvars.merge_contextvars)  # with several pools, each binds its name
    if worker:
        processors.insert(0, lambda _logger, _method, event: {**event, "worker": int(worker)})
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    return writer


def _without_traceback(_logger: object, _method: str, event: EventDict) -> EventDict:
    event.pop("exc_info", None)
    return event


def terminal(writer: LogWriter, style: LogStyle = LogStyle()) -> LogWriter | None:
    """Return the writer if it writes text to a terminal, else None."""
    return writer if sys.stderr.isatty() and style.is_text else None
