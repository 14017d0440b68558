# SPDX-License-Identifier: Apache-2.0
"""Requests, answers and errors of the OpenAI API, in the shapes that vLLM reads and writes."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

__all__ = [
    "AnswerMessage",
    "ApiError",
    "CachedTokens",
    "ChatChoice",
    "ChatMessage",
    "ChatRequest",
    "ChunkChoice",
    "CompletionRequest",
    "Delta",
    "FunctionCall",
    "ModelCard",
    "ModelList",
    "Reply",
    "Sampling",
    "TextChoice",
    "ToolCall",
    "ToolChoice",
    "Usage",
]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; the content is a text or a list of parts, of which those of type `text` have a text."""

    role: str
    content: str | list[dict[str, Raw]] | None = None


ToolChoice: TypeAlias = str | dict[str, Raw]
"""`none`, `auto`, `required`, or the function that is to be called."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both kinds of request; others are ignored."""

    model: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None


class ChatRequest(Sampling, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: Raw = Raw()
    tool_choice: ToolChoice | None = None
    max_completion_tokens: int | None = None


class CompletionRequest(Sampling, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`; a prompt is a text or token ids, alone or in a list of one."""

    prompt: str | list[str | int | list[int]]


class CachedTokens(msgspec.Struct, frozen=True):
    """Prompt tokens found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one answer."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens


class FunctionCall(msgspec.Struct, frozen=True):
    """The function that a tool call names; of a chunk, a part of the arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call; of a stream, only the first chunk has its id, and each has its index."""

    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET
    function: FunctionCall


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of an unstreamed chat."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of an unstreamed chat."""

    index: int = 0
    message: AnswerMessage
    logprobs: None = None
    finish_reason: str | None
    stop_reason: None = None


class Delta(msgspec.Struct, frozen=True):
    """The addition of one chunk to the answer; only the first chunk has the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of one chunk of a streamed chat; only the last one has `stop_reason`."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: UnsetType | None = UNSET


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of a completion, or of one chunk of it."""

    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None
    stop_reason: None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer or one chunk of it; a chunk with the usage has no choices."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk", "text_completion"]
    created: int
    model: str
    choices: list[ChatChoice] | list[ChunkChoice] | list[TextChoice]
    usage: Usage | UnsetType = UNSET


class _ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorDetail


class ApiError(Exception):
    """A request that is answered with an error; `kind` is vLLM's name for it, `param` the field at fault."""

    def __init__(self, status: int, kind: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode(_ErrorBody(_ErrorDetail(message, kind, param, status)))


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model; the parent of an adapter is its base model."""

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
