"""The JSON of one answer, whole or in chunks, for chats and for completions."""

from abc import ABC, abstractmethod
from typing import Literal

from epp.sim.intake import Plan
from epp.sim.openai_api import ChatChoice, ChunkChoice, Delta, Reply, TextChoice, Usage
from epp.sim.records import Emission, FinishReason

__all__ = ["ChatReplies", "Replies", "TextReplies"]


class Replies(ABC):
    """Builds what is sent for one planned request: `opening`, then one `chunk` per token, or all as one `whole`."""

    object_of_whole: Literal["chat.completion", "text_completion"]
    object_of_chunk: Literal["chat.completion.chunk", "text_completion"]

    def __init__(self, answer_id: str, planned: Plan, *, created: int) -> None:
        self._id = answer_id
        self._planned = planned
        self._created = created

    @abstractmethod
    def opening(self) -> Reply | None:
        """Return the chunk before the first token, if there is one."""

    @abstractmethod
    def chunk(self, emission: Emission) -> Reply:
        """Return the chunk of one token; the last one has the finish reason."""

    @abstractmethod
    def whole(self, last: Emission) -> Reply:
        """Return the whole answer, which ended with the emission `last`."""

    def usage_chunk(self, last: Emission) -> Reply:
        """Return the chunk after the last token, which has the usage and no choices."""
        return self._reply(self.object_of_chunk, [], usage=self._usage(last))

    def _words(self, emission: Emission, *, first: int) -> str:
        # The emission of an aborted request has no token.
        end = emission.index + (emission.finish_reason != "abort")
        return "".join(self._planned.words[first:end])

    def _usage(self, last: Emission) -> Usage:
        return Usage.of(
            prompt_tokens=self._planned.request.prompt_tokens,
            completion_tokens=last.index + (last.finish_reason != "abort"),
            cached_tokens=last.cached_tokens,
        )

    def _reply(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk", "text_completion"],
        choices: list[ChatChoice] | list[ChunkChoice] | list[TextChoice],
        *,
        usage: Usage | None = None,
    ) -> Reply:
        reply = Reply(id=self._id, object=kind, created=self._created, model=self._planned.model, choices=choices)
        return reply if usage is None else reply.with_usage(usage)


class ChatReplies(Replies):
    """Answers of `POST /v1/chat/completions`."""

    object_of_whole = "chat.completion"
    object_of_chunk = "chat.completion.chunk"

    def opening(self) -> Reply:
        """Return the chunk that says who speaks."""
        return self._reply(self.object_of_chunk, [ChunkChoice(delta=Delta(role="assistant", content=""))])

    def chunk(self, emission: Emission) -> Reply:
        """Return the chunk of one token."""
        delta = Delta(content=self._words(emission, first=emission.index))
        return self._reply(self.object_of_chunk, [_chunk_choice(delta, emission.finish_reason)])

    def whole(self, last: Emission) -> Reply:
        """Return the answer as one message."""
        choice = ChatChoice.of(self._words(last, first=0), str(last.finish_reason))
        return self._reply(self.object_of_whole, [choice], usage=self._usage(last))


class TextReplies(Replies):
    """Answers of `POST /v1/completions`."""

    object_of_whole = "text_completion"
    object_of_chunk = "text_completion"

    def opening(self) -> None:
        """Return nothing: a completion starts with its first token."""

    def chunk(self, emission: Emission) -> Reply:
        """Return the chunk of one token."""
        choice = TextChoice(text=self._words(emission, first=emission.index), finish_reason=emission.finish_reason)
        return self._reply(self.object_of_chunk, [choice])

    def whole(self, last: Emission) -> Reply:
        """Return the answer as one text."""
        choice = TextChoice(text=self._words(last, first=0), finish_reason=last.finish_reason)
        return self._reply(self.object_of_whole, [choice], usage=self._usage(last))


def _chunk_choice(delta: Delta, reason: FinishReason | None) -> ChunkChoice:
    if reason is None:
        return ChunkChoice(delta=delta)
    return ChunkChoice(delta=delta, finish_reason=reason, stop_reason=None)
