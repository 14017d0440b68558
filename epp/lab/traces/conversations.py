# SPDX-License-Identifier: Apache-2.0
"""Conversations in the format of ShareGPT: a JSON array, read element by element, and replayed at a given rate."""

import json
import re
from array import array
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import BinaryIO, NamedTuple

from epp.framework.request import BYTES_PER_TOKEN
from epp.lab.traces.file_trace import FileTrace, Problems
from epp.lab.traces.formats import BLOCK_TOKENS, BrokenLineError, SkippedLineError
from epp.lab.traces.lines import LONGEST_LINE, opened
from epp.lab.traces.trace import TraceError, TraceRequest
from epp.plugins.prefix_cache.producer import block_hashes

NAME = "sharegpt"
SECONDS_BETWEEN_TURNS = 30.0
"""Mean time between the turns of a conversation."""
MOST_OPEN = 1000
"""Conversations that are open at a time."""
_MOST_MESSAGES = 2000
_READ_BYTES = 1024 * 1024
_ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "model", "bard", "bing"})
_BETWEEN = re.compile(r"[\s,]*")


class _Turn(NamedTuple):
    prompt_bytes: int
    output_tokens: int


class _Conversation(NamedTuple):
    session: str
    turns: list[_Turn]
    """The last one first."""
    blocks: "array[int]"
    """Of the longest prompt: those of the other prompts are the first of these."""


class ConversationTrace(FileTrace):
    """Turns of conversations at random times: a Poisson process of `rate` requests a second.

    Each request is the next turn of one of the open conversations, and its prompt is all that was said before.
    """

    unit = "conversation"

    def __init__(self, path: Path, *, rate: float, seed: int) -> None:
        super().__init__(path, NAME, BLOCK_TOKENS)
        self._rate = rate
        self._seed = seed

    def _requests(self, problems: Problems) -> Iterator[TraceRequest]:
        random = Random(self._seed)  # noqa: S311  seeded
        most = min(max(round(self._rate * SECONDS_BETWEEN_TURNS), 1), MOST_OPEN)
        at = 0.0
        with opened(self.path, self._follow) as file:
            waiting = _conversations(file, problems)
            are_open: list[_Conversation] = []
            while True:
                while len(are_open) < most and (new := next(waiting, None)) is not None:
                    are_open.append(new)
                if not are_open:
                    break
                index = random.randrange(len(are_open))
                conversation = are_open[index]
                turn = conversation.turns.pop()
                if not conversation.turns:
                    are_open[index] = are_open[-1]
                    are_open.pop()
                prompt_tokens = -(-turn.prompt_bytes // BYTES_PER_TOKEN)
                yield TraceRequest(
                    at=round(at, 6),
                    prompt_tokens=prompt_tokens,
                    output_tokens=turn.output_tokens,
                    session=conversation.session,
                    blocks=tuple(conversation.blocks[: turn.prompt_bytes // (BLOCK_TOKENS * BYTES_PER_TOKEN)]),
                )
                at += random.expovariate(self._rate)
        problems.check()


def _conversations(file: BinaryIO, problems: Problems) -> Iterator[_Conversation]:
    for number, element in enumerate(_elements(file, problems.file), 1):
        problems.read += 1
        try:
            yield _conversation(element, str(number))
        except SkippedLineError as reason:
            problems.skipped[str(reason)] += 1
        except BrokenLineError as reason:
            problems.add(number, reason)


def _conversation(element: object, session: str) -> _Conversation:
    messages = element.get("conversations") if isinstance(element, dict) else None
    if not isinstance(messages, list):
        raise BrokenLineError('no list "conversations"')
    if len(messages) > _MOST_MESSAGES:
        raise BrokenLineError(f"more than {_MOST_MESSAGES} messages")
    said = bytearray()
    turns: list[_Turn] = []
    for message in messages:
        speaker, text = (message.get("from"), message.get("value")) if isinstance(message, dict) else (None, None)
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise BrokenLineError('a message without "from" and "value"')
        data = text.encode(errors="surrogatepass")
        if speaker in _ANSWERS and said and data:
            turns.append(_Turn(len(said), -(-len(data) // BYTES_PER_TOKEN)))
        said += data
    if not turns:
        raise SkippedLineError("without an answer")
    longest = turns[-1].prompt_bytes // (BLOCK_TOKENS * BYTES_PER_TOKEN)
    hashes = block_hashes(bytes(said), seed=0, block_tokens=BLOCK_TOKENS, max_blocks=longest)
    return _Conversation(session, turns[::-1], hashes)


def _elements(file: BinaryIO, name: str) -> Iterator[object]:
    """Yield the elements of a JSON array; raises TraceError for another text."""
    decode = getincrementaldecoder("utf-8-sig")(errors="replace").decode
    read = json.JSONDecoder().raw_decode
    text, position, number = decode(file.read(_READ_BYTES)), 0, 0
    begin = _BETWEEN.match(text)
    position = 0 if begin is None else begin.end()
    if not text.startswith("[", position):
        raise TraceError(f"{name} is not a JSON array of conversations")
    position += 1
    while True:
        between = _BETWEEN.match(text, position)
        position = position if between is None else between.end()
        if text.startswith("]", position):
            return
        try:
            element, position = read(text, position)
        except (ValueError, RecursionError) as error:
            left = len(text) - position
            more = file.read(max(_READ_BYTES, left)) if left <= LONGEST_LINE else b""
            if not more:
                reason = f"not valid JSON of at most {LONGEST_LINE >> 20} MiB, or the file is truncated"
                raise TraceError(f"{name}: conversation {number + 1} is {reason}: correct or remove it") from error
            text, position = text[position:] + decode(more), 0
        else:
            number += 1
            yield element
