# SPDX-License-Identifier: Apache-2.0
"""The requests of the load."""

from collections.abc import Mapping

_WORDS = b"the quick brown fox jumps over the lazy dog and counts the stars of the night "


class Prompts:
    """Requests with prompts of a size: the first halves are equal, then each has a unique number."""

    def __init__(self, prompt_bytes: int, pieces: int, first: int, headers: Mapping[str, str]) -> None:
        before, self._after = self.body(prompt_bytes, streamed=pieces > 0)
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            "host: bench",
            "content-type: application/json",
            f"content-length: {len(before) + 16 + len(self._after)}",
            *([f"x-bench-pieces: {pieces}"] if pieces else []),
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._head = "\r\n".join(lines).encode() + b"\r\n\r\n" + before
        self._next = first

    @staticmethod
    def body(prompt_bytes: int, *, streamed: bool) -> tuple[bytes, bytes]:
        """Return the text before and after the number, which has 16 digits."""
        filler = _WORDS * (prompt_bytes // len(_WORDS) + 1)
        half = prompt_bytes // 2
        stream = b'"stream":true,"stream_options":{"include_usage":true},' if streamed else b""
        before = b'{"model":"tiny",%s"messages":[{"role":"user","content":"%s' % (stream, filler[: half - 16])
        return before, filler[half:prompt_bytes] + b'"}],"max_tokens":500}'

    def next(self) -> bytes:
        """Return the next request."""
        self._next += 1
        return b"%s%016x%s" % (self._head, self._next, self._after)
