# SPDX-License-Identifier: Apache-2.0
"""Answers to GET requests, read from the bytes of a connection; no I/O."""

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_HEAD_LIMIT_BYTES = 64 * 1024
_OK = 200


class UnreadableAnswerError(Exception):
    """The answer is not HTTP, is too large, or ended before its end."""


class AnswerReader:
    """Reads the answers of one connection, one after the other, each of at most `limit` bytes.

    Interim answers (1xx) are left out. `done` tells that an answer is complete; `next` makes way for another one.
    """

    __slots__ = (
        "_final", "_head_read", "_limit", "_measured", "_parser", "_pieces", "_read", "_reason", "_size",
        "begun", "done", "encoding", "excess", "keeps_connection", "status",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parser = HttpResponseParser(self)
        self.next()

    def next(self) -> None:
        """Make ready for the next answer."""
        self._pieces: list[bytes] = []
        self._reason = b""
        self._size = 0
        self._read = 0
        self._head_read = False
        self._measured = False
        self._final = False
        self.begun = False
        """Whether anything came."""
        self.done = False
        self.excess = False
        """Whether more came than one answer."""
        self.keeps_connection = False
        self.status = 0
        self.encoding = ""
        """Content-Encoding, in lower case; empty for none."""

    @property
    def reason(self) -> str:
        """Text of the status line."""
        return self._reason.decode("latin-1")

    @property
    def body(self) -> bytes:
        """The body, as far as it was read."""
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def feed(self, data: bytes | memoryview) -> None:
        """Read what came; raises UnreadableAnswerError."""
        self.begun = True
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if self.done:  # what follows a whole answer
                self.excess = True
                return
            # An error of a callback below is the context of the parser's own.
            cause = error.__context__ if isinstance(error.__context__, UnreadableAnswerError) else None
            raise cause or UnreadableAnswerError(f"the answer is not HTTP: {error}") from None
        except HttpParserUpgrade:
            raise UnreadableAnswerError("the answer is an upgrade to another protocol") from None
        if not self._head_read:
            self._read += len(data)
            if self._read > _HEAD_LIMIT_BYTES:
                raise UnreadableAnswerError(f"the head of the answer is larger than {_HEAD_LIMIT_BYTES} bytes")

    def feed_end(self) -> None:
        """Record that the server closed the connection, which ends a body of no given length; raises as `feed`."""
        if self.done:
            return
        if not self._final or self._measured:
            raise UnreadableAnswerError("the connection was closed before the end of the answer")
        self.done = True

    def on_message_begin(self) -> None:
        """Note an answer that nothing asked for."""
        if self.done:
            self.excess = True

    def on_status(self, text: bytes) -> None:
        """Keep the text of the status line."""
        if not self.done:
            self._reason += text

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what matters of a header."""
        if self.done:
            return
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._measured = True
        elif name == b"content-encoding":
            self.encoding = value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        """Note whether this is the final answer."""
        if self.done:
            return
        self.status = self._parser.get_status_code()
        if self.status >= _OK:
            self._final = self._head_read = True

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body; raises UnreadableAnswerError once it is too large."""
        if self.done:
            return
        self._size += len(piece)
        if self._size > self._limit:
            raise UnreadableAnswerError(f"the page is larger than {self._limit} bytes")
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        if self.done:
            return
        if self._final:
            self.done = True
            self.keeps_connection = self._parser.should_keep_alive()
        else:
            self._reason, self.encoding, self._measured = b"", "", False
