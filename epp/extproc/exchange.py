# SPDX-License-Identifier: Apache-2.0
"""State that both halves of an exchange share: progress, answers, protocol errors."""

from enum import Enum, auto
from typing import TypeAlias

from epp.director import Held
from epp.extproc.wire import ProcessingResponse

Reply: TypeAlias = ProcessingResponse | Held
Answer: TypeAlias = bytes | Held
"""A serialised ProcessingResponse, or a held request: the carrier settles it before it asks for the next answer."""


class ProtocolError(Exception):
    """The gateway sent a message that the protocol does not allow, or that this picker cannot answer."""


class Progress(Enum):
    """Progress of the request, or of the response; a response may start before its request has ended."""

    EXPECTED = auto()
    BODY = auto()
    ENDED = auto()


_STATES = {
    Progress.EXPECTED: "its headers have not come",
    Progress.BODY: "its headers have come already",
    Progress.ENDED: "it has ended already",
}


def expect(kind: str, progress: Progress, *wanted: Progress) -> None:
    """Raise ProtocolError unless a message of this kind may come now."""
    if progress not in wanted:
        raise ProtocolError(f"unexpected {kind}: {_STATES[progress]}")
