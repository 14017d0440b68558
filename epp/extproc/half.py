"""What both halves of an exchange share: how far one has come, and what must not happen."""

from enum import Enum, auto


class ProtocolError(Exception):
    """The gateway sent what the protocol does not allow, or what this picker cannot answer."""


class Progress(Enum):
    """How far the request, or the response, has come. A response may start while its request still arrives."""

    EXPECTED = auto()
    BODY = auto()
    ENDED = auto()


def expect(kind: str, progress: Progress, *wanted: Progress) -> None:
    """Raise ProtocolError unless a message of this kind may come now."""
    if progress not in wanted:
        raise ProtocolError(f"{kind} where {progress.name} is")
