# SPDX-License-Identifier: Apache-2.0
"""HTTP responses to GET requests, parsed from the bytes of a connection; no I/O."""

import time
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from epp.pool.collectors.page_limits import Limit
from epp.pool.settings import PageLimits

BUFFER_BYTES = 64 * 1024
"""Most bytes read in one event-loop iteration: a page of 51 KB with its head. asyncio would read 32 times as many."""
_HEAD_LIMIT_BYTES = 16 * 1024
MOST_PIECES = 8 * 1024
"""Most headers, chunks and trailers of a response: servers do not need so many."""
_OVERHEAD_BYTES = 1024 * 1024
"""Most bytes of a response beside head and body, such as sizes of chunks."""
UNCOUNTED_BYTES = 64 * 1024
"""Bytes of each page that do not count for the limit on all pages; lists of models are usually smaller."""
_EXCERPT_BYTES = 4 * 1024
"""Bytes of a body that is not a page that are kept."""
_OK = 200
IDENTITY = frozenset({"", "identity"})
"""Content-Encodings of a page that is not encoded."""


class InvalidResponseError(Exception):
    """The response is not HTTP, is too large, or is truncated."""

    def __init__(self, message: str, limit: Limit | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        """The limit that it exceeds."""


class PageBuffer(Protocol):
    """Collects the pieces of pages, one page after the other."""

    def begin(self) -> None:
        """Start a new page."""

    def feed(self, piece: bytes, /) -> None:
        """Add the next piece."""

    def end(self) -> bytes:
        """Return the page, or the wanted parts of it."""


class Reading:
    """State that all connections of a collector share: limits, CPU time, and the bytes of incomplete pages.

    One read buffer is enough, since the event loop requests, fills and delivers it in one call.
    """

    def __init__(self, limits: PageLimits | None = None) -> None:
        self.limits = limits or PageLimits()
        self.incomplete_bytes = 0
        """Bytes of incomplete pages that are buffered whole, beyond the first 64 KiB of each."""
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self._began = 0.0
        self._spent = 0.0

    def begin(self) -> None:
        """Start the measurement of CPU time."""
        self._began = time.thread_time()

    def end(self) -> None:
        if self._began:
            self._spent += time.thread_time() - self._began
            self._began = 0.0

    @property
    def lap(self) -> float:
        """CPU seconds since `begin`, without stopping the measurement."""
        return time.thread_time() - self._began if self._began else 0.0

    def take(self) -> float:
        """Return the CPU seconds between `begin` and `end` since the last call."""
        spent, self._spent = self._spent, 0.0
        return spent


class WholePage:
    """Buffers a page whole; all such pages together are limited, beyond the first 64 KiB of each."""

    __slots__ = ("_counted", "_pieces", "_reading", "_size")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._pieces: list[bytes] = []
        self._size = 0
        self._counted = 0

    def begin(self) -> None:
        """Start a new page, and drop the last one."""
        self._pieces = []
        self._size = 0
        self._reading.incomplete_bytes -= self._counted
        self._counted = 0

    def feed(self, piece: bytes) -> None:
        """Add the next piece; raises InvalidResponseError if all pages together are too large."""
        limit = self._reading.limits.arriving_bytes
        self._size += len(piece)
        more = max(self._size - UNCOUNTED_BYTES, 0) - self._counted
        if more and self._reading.incomplete_bytes + more > limit:
            text = f"all incomplete pages together have more than {limit} bytes"
            raise InvalidResponseError(text, Limit.PAGES_BYTES)
        self._reading.incomplete_bytes += more
        self._counted += more
        self._pieces.append(piece)

    def end(self) -> bytes:
        pieces = self._pieces
        self.begin()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ResponseParser:
    """Parses the responses of one connection, one after the other, each of at most `limit` bytes.

    Interim responses (1xx) are skipped. `done` is set when a response is complete; `next` starts the next response.
    `page_buffer` collects pages; an excerpt of other bodies is kept.
    """

    __slots__ = (
        "_excerpt", "_final", "_is_page", "_limit", "_measured", "_page_buffer", "_parser",
        "_pieces", "_read", "_reason", "_size", "begun", "done", "encoding", "excess", "keeps_connection",
        "status",
    )  # fmt: skip

    def __init__(self, limit: int, page_buffer: PageBuffer) -> None:
        self._limit = limit
        self._page_buffer = page_buffer
        self._parser = HttpResponseParser(self)
        self.next()

    def next(self) -> None:
        self._page_buffer.begin()
        self._excerpt = b""
        self._is_page = False
        self._reason = b""
        self._pieces = 0
        self._size = 0
        self._read = 0
        self._measured = False
        self._final = False
        self.begun = False
        """Whether any bytes were received."""
        self.done = False
        self.excess = False
        """Whether more than one response was received."""
        self.keeps_connection = False
        self.status = 0
        self.encoding = ""
        """Content-Encoding, in lower case; empty for none."""

    def drop(self) -> None:
        self._page_buffer.begin()

    @property
    def reason(self) -> str:
        """Text of the status line."""
        return self._reason.decode("latin-1")

    def body(self) -> bytes:
        """Return the page, or an excerpt of another body; once for each response."""
        return self._page_buffer.end() if self._is_page else self._excerpt

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes; raises InvalidResponseError."""
        self.begun = True
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if self.done:  # after a complete response
                self.excess = True
                return
            # An error of a callback below is the context of the parser's own.
            cause = error.__context__ if isinstance(error.__context__, InvalidResponseError) else None
            raise cause or InvalidResponseError(f"the answer is not HTTP: {error}") from None
        except HttpParserUpgrade:
            raise InvalidResponseError("the answer is an upgrade to another protocol") from None
        self._read += len(data)
        if not self._final:
            if self._read > _HEAD_LIMIT_BYTES:
                raise InvalidResponseError(f"the head of the answer is larger than {_HEAD_LIMIT_BYTES} bytes")
        elif self._read > self._limit + _OVERHEAD_BYTES and not self.done:
            raise InvalidResponseError(f"the answer is larger than {self._limit} bytes", Limit.PAGE_BYTES)

    def feed_end(self) -> None:
        """Record that the server closed the connection, which ends a body of no given length; raises as `feed`."""
        if self.done:
            return
        if not self._final or self._measured:
            raise InvalidResponseError("the connection was closed before the end of the answer")
        self.done = True

    def on_message_begin(self) -> None:
        """Record an unrequested response."""
        if self.done:
            self.excess = True

    def on_status(self, text: bytes) -> None:
        if not self.done:
            self._reason += text

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read the relevant headers; raises InvalidResponseError for too many, trailers included."""
        if self.done:
            return
        self._count_piece()
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._measured = True
        elif name == b"content-encoding":
            self.encoding = value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        if self.done:
            return
        self.status = self._parser.get_status_code()
        if self.status >= _OK:
            self._final = True
            self._is_page = self.status == _OK and self.encoding in IDENTITY

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body; raises InvalidResponseError once it is too large."""
        if self.done:
            return
        self._size += len(piece)
        if self._size > self._limit:
            raise InvalidResponseError(f"the page is larger than {self._limit} bytes", Limit.PAGE_BYTES)
        self._count_piece()
        if self._is_page:
            self._page_buffer.feed(piece)
        elif len(self._excerpt) < _EXCERPT_BYTES:
            self._excerpt += piece[:_EXCERPT_BYTES]

    def on_message_complete(self) -> None:
        if self.done:
            return
        if self._final:
            self.done = True
            self.keeps_connection = self._parser.should_keep_alive()
        else:
            self._reason, self.encoding, self._measured = b"", "", False

    def _count_piece(self) -> None:
        self._pieces += 1
        if self._pieces > MOST_PIECES:
            raise InvalidResponseError(f"the page comes in more than {MOST_PIECES} pieces", Limit.PAGE_CHUNKS)
