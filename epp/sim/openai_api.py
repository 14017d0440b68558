"""Requests and answers of the OpenAI API, in the shapes that vLLM reads and writes."""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

__all__ = [
    "ApiError",
    "ChatChoice",
    "ChatMessage",
    "ChatRequest",
    "ChunkChoice",
    "CompletionRequest",
    "Delta",
    "ErrorBody",
    "ModelCard",
    "ModelList",
    "Reply",
    "TextChoice",
    "Usage",
]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides its tokens."""

    include_usage: bool | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; the content is a text, or parts of which those of type `text` have one."""

    role: str
    content: str | list[dict[str, Raw]] | None = None


class _Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of request have in common; fields that do not matter here are ignored."""

    model: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None


class ChatRequest(_Sampling, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: Raw | None = None
    max_completion_tokens: int | None = None


class CompletionRequest(_Sampling, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`; a prompt is a text or token ids, alone or in a list of one."""

    prompt: str | list[str | int | list[int]]


class _CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens

    @classmethod
    def of(cls, *, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> "Usage":
        """Add up the total."""
        total_tokens = prompt_tokens + completion_tokens
        return cls(prompt_tokens, total_tokens, completion_tokens, _CachedTokens(cached_tokens))


class _AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a chat that is not streamed."""

    index: int = 0
    message: _AnswerMessage
    logprobs: None = None
    finish_reason: str
    stop_reason: None = None

    @classmethod
    def of(cls, text: str, finish_reason: str) -> "ChatChoice":
        """Wrap a text."""
        return cls(message=_AnswerMessage(content=text), finish_reason=finish_reason)


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to the answer; only the first chunk says the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of one chunk of a streamed chat; `stop_reason` comes with the last one only."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: UnsetType | None = UNSET


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of a completion, whole or one chunk of it."""

    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer or one chunk of it; a chunk that carries the usage has no choices."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk", "text_completion"]
    created: int
    model: str
    choices: list[ChatChoice] | list[ChunkChoice] | list[TextChoice]
    usage: Usage | UnsetType = UNSET

    def with_usage(self, usage: Usage) -> "Reply":
        """Return the same reply with token counts."""
        return msgspec.structs.replace(self, usage=usage)


class _ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True):
    """The JSON of every answer that is an error."""

    error: _ErrorDetail


class ApiError(Exception):
    """A request that is answered with an error; `kind` is vLLM's name for it, `param` the field at fault."""

    def __init__(self, status: int, kind: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(_ErrorDetail(message, kind, param, status))


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model; an adapter names its base model as parent."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "vllm"
    root: str
    parent: str | None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
