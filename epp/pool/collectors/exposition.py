# SPDX-License-Identifier: Apache-2.0
"""Search for selected series in a page in the Prometheus text format.

The picker needs seven of the hundreds of series in a page of 50 KB, twenty times a second: names are searched for in
the raw bytes, and only lines with one of these names are parsed.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import msgspec

from epp.framework.datalayer import PageError

PROMETHEUS_TEXT = "text/plain;version=0.0.4,text/plain;q=0.5"
"""Media types of the format."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_SPEC = re.compile(rf"\s*({_NAME})\s*(?:\{{(.*)\}})?\s*", re.DOTALL)
_MATCHER = re.compile(rf'\s*({_LABEL})\s*=\s*(?:({_QUOTED})|([^\s",{{}}]+))\s*(?:,|$)', re.DOTALL)

_BLOCK = re.compile(rb'[ \t]*\{([^"}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"}\n]*)*)\}')
_PAIR = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"')
_ESCAPE = re.compile(rb'\\([\\"n])')
AFTER_NAME = (b"{", b" ", b"\t")
_EXCERPT = 120
_MOST_STAMP_DIGITS = 18
_OLD_SECONDS = 300.0
"""Age of a time stamp from which a value is not that of now; clocks of machines differ by less."""


class Series(msgspec.Struct, frozen=True, gc=False):
    """One line of a page."""

    block: bytes
    """Text between the braces."""
    value: float
    """May be NaN or infinite."""
    is_old: bool = False
    """Whether its time stamp is long past."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, parsed on access: most series are read for their value only."""
        return _labels_of(self.block)


@dataclass(frozen=True, slots=True)
class Selector:
    """A series name, and label values that must be equal."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    key: bytes = field(init=False, repr=False, compare=False)
    """Name and labels, to keep something by."""
    needle: bytes = field(init=False, repr=False, compare=False)
    """Start of a line with this name, line feed included; a longer name may start like that too."""

    def __post_init__(self) -> None:
        """Encode the name for the search."""
        object.__setattr__(self, "needle", b"\n" + self.name.encode())
        object.__setattr__(self, "key", repr((self.name, sorted(self.labels.items()))).encode())

    @classmethod
    def parse(cls, spec: str) -> "Selector":
        """Parse `name` or `name{label=value,...}`, values quoted or bare; raises ValueError."""
        whole = _SPEC.fullmatch(spec)
        if whole is None:
            raise ValueError(f"{spec!r} is not a metric spec: write name or name{{label=value,...}}")
        labels: dict[str, str] = {}
        body, end = (whole[2] or "").strip(), 0
        while end < len(body):
            matcher = _MATCHER.match(body, end)
            if matcher is None:
                raise ValueError(
                    f"{spec!r} is not a metric spec: {body[end:]!r} is not label=value; '=' is the only comparison"
                )
            key, quoted, bare = matcher.groups()
            labels[key] = bare if quoted is None else _unescape(quoted[1:-1].encode())
            end = matcher.end()
        return cls(whole[1], labels)

    def read(self, page: bytes) -> list[Series]:
        """Return the matching series in order of the page; raises PageError for an invalid one.

        In the format, all lines of one name are adjacent, so that the rest of the page is not searched.
        """
        end = self.find(page)
        return [] if end < 0 else self.read_from(page, end)[0]

    def find(self, page: bytes) -> int:
        """Return the end of the name at its first occurrence as that of a series; -1 for none."""
        end = len(self.needle) - 1 if page.startswith(self.needle[1:]) else self._next(page, 0)
        while end >= 0 and page[end : end + 1] not in AFTER_NAME:  # a longer name that starts with this one
            end = self._next(page, end)
        return end

    def read_from(self, page: bytes, end: int) -> tuple[list[Series], int, int]:
        """Return the matching series among the adjacent lines of this name, the number of these lines, and their end.

        `end` is the end of the name in the first of them. Raises PageError for an invalid one.
        """
        found: list[Series] = []
        lines = 0
        while True:
            line_end = self._read_line(page, end, found)
            lines += 1
            end = line_end + len(self.needle)
            if not page.startswith(self.needle, line_end) or page[end : end + 1] not in AFTER_NAME:
                return found, lines, line_end

    def _next(self, page: bytes, start: int) -> int:
        """Return the end of the name at its next occurrence at the start of a line; -1 for none."""
        at = page.find(self.needle, start)
        return -1 if at < 0 else at + len(self.needle)

    def _read_line(self, page: bytes, end_of_name: int, found: list[Series]) -> int:
        """Append the series if it matches; return the end of its line."""
        block = _BLOCK.match(page, end_of_name)
        start = end_of_name if block is None else block.end()
        stop = page.find(b"\n", start)
        rest = page[start:] if stop < 0 else page[start:stop]
        parts = rest.split(None, 2)
        try:
            value = float(parts[0])
            is_old = len(parts) > 1 and _is_old(parts[1])
        except (IndexError, ValueError):
            excerpt = (self.name.encode() + page[end_of_name:start] + rest)[:_EXCERPT].decode(errors="replace")
            raise PageError(f"a series cannot be read: {excerpt!r}") from None
        series = Series(b"" if block is None else block[1], value, is_old)
        if not self.labels or self.labels.items() <= series.labels.items():
            found.append(series)
        return len(page) if stop < 0 else stop


def start_of_value(page: bytes, end_of_name: int) -> int:
    """Return where the value of a series begins; -1 where something follows it, or no line feed."""
    block = _BLOCK.match(page, end_of_name)
    start = end_of_name if block is None else block.end()
    stop = page.find(b"\n", start)
    value = page[start:stop].split()
    return -1 if stop < 0 or len(value) != 1 else page.index(value[0], start)


def _is_old(stamp: bytes) -> bool:
    """Return whether a time stamp is long past; what follows a value may be no time stamp."""
    return stamp.isdigit() and time.time() - int(stamp[:_MOST_STAMP_DIGITS]) / 1000 > _OLD_SECONDS


@lru_cache(maxsize=1024)  # the labels of an engine are the same in every page
def _labels_of(block: bytes) -> Mapping[str, str]:
    return MappingProxyType({key.decode(): _unescape(value) for key, value in _PAIR.findall(block)})


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)
    return value.decode(errors="replace")
