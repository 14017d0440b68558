# SPDX-License-Identifier: Apache-2.0
"""Log lines as JSON, with the keys of llm-d-router first: `level`, `ts`, `logger`, `caller`, `msg`."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import CodeType, FrameType, MappingProxyType
from typing import TypeAlias

import msgspec
import structlog
from structlog.typing import EventDict

from epp.framework.headers import REQUEST_ID

TimeStamp: TypeAlias = Callable[[], str | int | float]
"""Returns the time of now as lines have it."""

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "exception": "stacktrace",
        "model": "modelName",
        "objective": "objectiveKey",
        "request_id": REQUEST_ID,
        "target_model": "targetModelName",
    }
)
"""Keys of llm-d-router for fields that have other names in this program."""
_SKIPPED_FRAMES = 2


class Rfc3339:
    """The time in UTC with microseconds; the text of the second is kept for the next line."""

    def __init__(self) -> None:
        self._last = 0, ""

    def __call__(self) -> str:
        """Return the time of now; called in any thread."""
        second, micros = divmod(time.time_ns() // 1000, 1_000_000)
        known, text = self._last
        if second != known:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._last = second, text
        return f"{text}.{micros:06}Z"


def _iso8601() -> str:
    return datetime.now(UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S.%f%z")


def _rfc3339_seconds() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def time_stamp(encoding: str | None) -> TimeStamp:
    """Return the time stamps of an encoding of zap; None for the default, RFC 3339 with microseconds."""
    stamps: Mapping[str, TimeStamp] = {
        "epoch": time.time,
        "millis": lambda: time.time() * 1e3,
        "nano": time.time_ns,
        "iso8601": _iso8601,
        "rfc3339": _rfc3339_seconds,
    }
    return stamps.get(encoding or "", Rfc3339())


class JsonLines:
    """Makes a line of an event: one function instead of a chain, since every request has a line."""

    def __init__(self, stamp: TimeStamp) -> None:
        self._stamp = stamp
        self._callers: dict[tuple[int, int], tuple[CodeType, str, str]] = {}
        """By code, which each entry keeps alive, and line: as many as the program has calls that log."""

    def __call__(self, logger: object, method: str, event: EventDict) -> str:
        """Return the line; structlog calls this for every event, in any thread."""
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
        except (TypeError, ValueError):  # such as half a surrogate pair: values may be from clients
            return json.dumps({key: ascii(value) for key, value in line.items()})

    def _caller(self) -> tuple[str, str]:
        """Return the module and the place of the call that logs: the first frame outside of structlog."""
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
