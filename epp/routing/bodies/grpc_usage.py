# SPDX-License-Identifier: Apache-2.0
"""Token counts in the response of a gRPC method, and whether it has any message; anything else is ignored."""

from dataclasses import KW_ONLY, dataclass, field

from epp.framework.protobuf import FieldReader
from epp.framework.request import GrpcResponse, Usage
from epp.routing.bodies.usage import MAX_COUNT, UsageReader

_HEAD_BYTES = 5
_MAX_MESSAGE_BYTES = 1024 * 1024
_MOST_FIELDS = 1000
"""Fields of a message that are read: a millisecond."""
_COMPRESSED = 1


@dataclass(slots=True, eq=False)
class GrpcUsageReader:
    """Finds the token counts in a response, fed in pieces that may cut messages anywhere.

    Of several messages, each count has the last value that is not 0. Messages of more than 1 MiB, compressed ones and
    unreadable ones are skipped; nothing raises, and no more than 1 MiB is kept.
    """

    response: GrpcResponse
    _: KW_ONLY
    event_stream: bool
    """Whether JSON in messages comes as an event stream."""
    events: int = field(default=0, init=False)
    """Messages so far."""
    usage: Usage | None = field(default=None, init=False)
    """The counts so far; None before the first one."""
    tells_cached: bool = field(default=False, init=False)
    """Whether the counts so far have one for cached tokens."""
    _head: bytes = field(default=b"", init=False)
    _left: int = field(default=0, init=False)
    """Bytes of the current message that have not come."""
    _kept: bytearray | None = field(default=None, init=False)
    """The current message; None if it is skipped."""
    _is_lost: bool = field(default=False, init=False)
    """Whether there was something else than a message: no later message can be found."""
    _json: UsageReader = field(init=False)

    def __post_init__(self) -> None:
        """Prepare to read JSON in messages."""
        self._json = UsageReader(event_stream=self.event_stream)

    @property
    def has_content(self) -> bool:
        """Whether there was a message; of JSON, one other than an error."""
        return self._json.has_content if self.response.json_body else self.events > 0

    def feed(self, piece: bytes, *, last: bool) -> None:
        """Read a piece."""
        at = 0
        while at < len(piece) and not self._is_lost:
            if not self._left:
                part = piece[at : at + _HEAD_BYTES - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == _HEAD_BYTES:
                    self._begin()
                continue
            part = piece[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            if self._kept is not None:
                self._kept += part
            if not self._left:
                self._end()
        if last and self.response.json_body:
            self._read_json(b"", last=True)

    def _begin(self) -> None:
        flag, self._left, self._head = self._head[0], int.from_bytes(self._head[1:]), b""
        self._is_lost = flag > _COMPRESSED
        self._kept = None if flag or self._left > _MAX_MESSAGE_BYTES else bytearray()
        if not self._left and not self._is_lost:
            self._end()

    def _end(self) -> None:
        self.events += 1
        message, self._kept = self._kept, None
        if message:
            try:
                self._read(FieldReader(_MOST_FIELDS), bytes(message))
            except ValueError:  # malformed
                return

    def _read(self, reader: FieldReader, message: bytes) -> None:
        fields = dict(reader.fields(message))
        data = fields.get(self.response.json_body)
        if self.response.json_body and isinstance(data, memoryview):
            self._read_json(bytes(data), last=False)
        for numbers in self.response.counts:
            counts = fields
            if numbers.message:
                inner = fields.get(numbers.message)
                if not isinstance(inner, memoryview):
                    continue
                counts = dict(reader.fields(inner))
            before = self.usage or Usage(0, 0, 0)
            values = (numbers.prompt_tokens, numbers.completion_tokens, numbers.cached_tokens)
            prompt, completion, cached = (_count(counts.get(number)) if number else 0 for number in values)
            self.tells_cached = self.tells_cached or numbers.cached_tokens > 0
            self.usage = Usage(
                prompt or before.prompt_tokens,
                completion or before.completion_tokens,
                cached or before.cached_tokens,
            )

    def _read_json(self, data: bytes, *, last: bool) -> None:
        if self.event_stream and data.startswith(b"{"):  # an event by itself
            data = b"data: " + data + b"\n\n"
        self._json.feed(data, last=last)
        self.usage, self.tells_cached = self._json.usage, self._json.tells_cached


def _count(value: int | memoryview | None) -> int:
    return value if isinstance(value, int) and value <= MAX_COUNT else 0
