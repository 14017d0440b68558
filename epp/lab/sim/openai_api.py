# SPDX-License-Identifier: Apache-2.0
"""Requests, answers and errors of the OpenAI API, in the shapes that vLLM reads and writes."""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; the content is a text or a list of parts; parts of type `text` have a text."""

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


class ResponsesRequest(Sampling, frozen=True, kw_only=True):
    """The body; of its items, texts count, and whatever else is in them as JSON."""

    input: str | list[dict[str, Raw]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: Raw = Raw()
    tool_choice: ToolChoice | None = None

    def as_chat(self) -> ChatRequest:
        """Return the same request as a chat."""
        items = [ChatMessage("user", self.input)] if isinstance(self.input, str) else [_message(i) for i in self.input]
        if self.instructions:
            items.insert(0, ChatMessage("system", self.instructions))
        return ChatRequest(
            model=self.model,
            messages=items,
            tools=self.tools,
            tool_choice=self.tool_choice,
            max_completion_tokens=self.max_output_tokens,
            ignore_eos=self.ignore_eos,
            stream=self.stream,
            cache_salt=self.cache_salt,
        )


def _message(item: dict[str, Raw]) -> ChatMessage:
    """Return an item as a message: one with a role, or a call of a function or its output, as their JSON."""
    if "role" not in item:
        return ChatMessage("tool", msgspec.json.encode(item).decode())
    try:
        return msgspec.json.decode(msgspec.json.encode(item), type=ChatMessage)
    except msgspec.DecodeError as error:
        raise ApiError(400, "BadRequestError", f"An item of the input is no message: {error}", param="input") from error


class ResponseShape:
    """Makes the objects and events of one answer: a text, or the call of a tool."""

    def __init__(self, response_id: str, model: str, created: int, tool: str) -> None:
        self._id = response_id
        self._model = model
        self._created = created
        self._tool = tool
        self._item_id = f"{'fc' if tool else 'msg'}_{response_id.removeprefix('resp_')}"
        self._number = 0

    def opening(self) -> bytes:
        """Return the events before the first token."""
        item = self._item("", "in_progress")
        events = self._event("response.created", response=self.whole(None, "", "in_progress"))
        events += self._event("response.in_progress", response=self.whole(None, "", "in_progress"))
        events += self._event("response.output_item.added", output_index=0, item=item)
        if not self._tool:
            events += self._part("response.content_part.added", "")
        return events

    def delta(self, text: str) -> bytes:
        """Return the event of one token."""
        kind = "response.function_call_arguments.delta" if self._tool else "response.output_text.delta"
        return self._event(kind, **self._place, delta=text)

    def ending(self, usage: Any, text: str, status: str) -> bytes:
        """Return the events after the last token."""
        if self._tool:
            events = self._event("response.function_call_arguments.done", **self._place, arguments=text)
        else:
            events = self._event("response.output_text.done", **self._place, text=text)
            events += self._part("response.content_part.done", text)
        events += self._event("response.output_item.done", output_index=0, item=self._item(text, status))
        return events + self._event(f"response.{status}", response=self.whole(usage, text, status))

    def whole(self, usage: Any, text: str, status: str) -> dict[str, object]:
        """Return the response; `usage` and the output are left out while it is in progress."""
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "error": None,
            "incomplete_details": incomplete,
            "output": [] if status == "in_progress" else [self._item(text, status)],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    @property
    def _place(self) -> dict[str, object]:
        place: dict[str, object] = {"item_id": self._item_id, "output_index": 0}
        return place if self._tool else place | {"content_index": 0}

    def _item(self, text: str, status: str) -> dict[str, object]:
        if self._tool:
            call = {"type": "function_call", "id": self._item_id, "call_id": f"call_{self._item_id}"}
            return {**call, "name": self._tool, "arguments": text, "status": status}
        content = [] if status == "in_progress" else [_text_part(text)]
        return {"type": "message", "id": self._item_id, "role": "assistant", "status": status, "content": content}

    def _part(self, kind: str, text: str) -> bytes:
        return self._event(kind, **self._place, part=_text_part(text))

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _text_part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": []}
