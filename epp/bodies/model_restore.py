"""Puts the model name a client asked for back into a response on its way through."""

import msgspec

from epp.bodies.members import MemberScanner, Wanted

_MODEL = Wanted.named("model")
_DATA = b"data:"
_ANOTHER = b"another"
_LONGEST_VALUE_BYTES = 64 * 1024


class ModelRestorer:
    """Passes a response through and replaces the top-level `model` of its JSON object, or of each event's object.

    Only a string is replaced, and only one of at most 64 KiB; nested members and text are never touched. The output
    does not depend on how the response was cut. All that is ever held back is a `model` value whose end is not there.

    In an event stream the object may span the `data:` lines of its event; a line that starts behind a finished object
    starts a new one. Data that is no object, comments and other fields pass.
    """

    def __init__(self, model: str, *, event_stream: bool) -> None:
        self._replacement = msgspec.json.encode(model)
        self._event_stream = event_stream
        self._scanner = MemberScanner(_MODEL)
        self._in_value = False
        self._holds = False
        self._held = bytearray()
        self._field = b""
        self._line_is_empty = True
        self._after_carriage_return = False

    def feed(self, piece: bytes, *, last: bool) -> bytes:
        """Return what can be passed on now; with `last`, all that is left."""
        output = _Output(piece)
        if self._event_stream:
            self._read_lines(piece, output)
        else:
            self._replace(self._scanner.feed(piece), output)
        if self._holds:
            self._held += output.take_until(len(piece))
            if last or len(self._held) > _LONGEST_VALUE_BYTES:
                self._let_go(output)
        return output.joined()

    def _read_lines(self, piece: bytes, output: "_Output") -> None:
        start = 0
        for line in piece.splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            if content:
                self._read_content(content, start, output)
            if len(content) < len(line):
                self._end_line(line, start + len(content), output)
            start += len(line)

    def _read_content(self, content: bytes, start: int, output: "_Output") -> None:
        self._line_is_empty = False
        if self._field == _ANOTHER:
            return
        if self._field != _DATA:
            missing = len(_DATA) - len(self._field)
            self._field += content[:missing]
            if self._field != _DATA:
                if not _DATA.startswith(self._field):
                    self._field = _ANOTHER
                return
            if self._scanner.complete:
                self._scanner = MemberScanner(_MODEL)
            content = content[missing:]
            start += missing
        self._replace([start + mark for mark in self._scanner.feed(content)], output)

    def _end_line(self, line: bytes, end: int, output: "_Output") -> None:
        finishes_previous = self._after_carriage_return and line == b"\n" and self._line_is_empty
        self._after_carriage_return = line.endswith(b"\r")
        if finishes_previous:
            return
        if self._line_is_empty:
            self._scanner = MemberScanner(_MODEL)
            self._in_value = False
        elif self._field == _DATA:
            self._scanner.end_line()
        if self._holds:
            self._held += output.take_until(end)
            self._let_go(output)
        self._field = b""
        self._line_is_empty = True

    def _replace(self, marks: list[int], output: "_Output") -> None:
        for mark in marks:
            if not self._in_value:
                output.pass_until(mark)
                self._holds = output.piece.startswith(b'"', mark)
            elif self._holds:
                self._held += output.take_until(mark)
                if len(self._held) <= _LONGEST_VALUE_BYTES:
                    self._held[:] = self._replacement
                self._let_go(output)
            self._in_value = not self._in_value

    def _let_go(self, output: "_Output") -> None:
        output.put(bytes(self._held))
        self._held.clear()
        self._holds = False


class _Output:
    """What becomes of one piece: parts to pass on, and a position before which everything is accounted for."""

    __slots__ = ("_parts", "_position", "piece")

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self._parts: list[bytes] = []
        self._position = 0

    def put(self, part: bytes) -> None:
        self._parts.append(part)

    def take_until(self, end: int) -> bytes:
        taken = self.piece[self._position : end]
        self._position = end
        return taken

    def pass_until(self, end: int) -> None:
        self._parts.append(self.take_until(end))

    def joined(self) -> bytes:
        if not self._parts and not self._position:
            return self.piece
        self.pass_until(len(self.piece))
        return b"".join(self._parts)
