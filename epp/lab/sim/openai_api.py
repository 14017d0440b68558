# SPDX-License-Identifier: Apache-2.0
"""Requests, answers and errors of the OpenAI API, in vLLM's format."""

import time
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

JSON: TypeAlias = dict[str, object]

ToolChoice: TypeAlias = str | dict[str, Raw]
"""`none`, `auto`, `required`, or the function to call."""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; the content is a text or a list of parts, of which those of type `text` have a text."""

    role: str
    content: str | list[dict[str, Raw]] | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of requests; unknown fields are ignored."""

    model: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None


class ChatRequest(Sampling, frozen=True, kw_only=True):
    messages: list[ChatMessage]
    tools: Raw = Raw()
    tool_choice: ToolChoice | None = None
    max_completion_tokens: int | None = None


class CompletionRequest(Sampling, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`; a prompt is a text or token ids, alone or in a list of one."""

    prompt: str | list[str | int | list[int]]


class ResponsesRequest(Sampling, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`; items that are not messages count as their JSON."""

    input: str | list[dict[str, Raw]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: Raw = Raw()
    tool_choice: ToolChoice | None = None

    def as_chat(self) -> ChatRequest:
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
    """Return an item as a message; a function call or its output becomes its JSON."""
    if "role" not in item:
        return ChatMessage("tool", msgspec.json.encode(item).decode())
    try:
        return msgspec.json.decode(msgspec.json.encode(item), type=ChatMessage)
    except msgspec.DecodeError as error:
        raise ApiError(
            400, "BadRequestError", f"An item of the input is not a message: {error}", param="input"
        ) from error


class ApiError(Exception):
    """An error response; `kind` is vLLM's name of the error, `param` the invalid field."""

    def __init__(self, status: int, kind: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        detail = {"message": message, "type": kind, "param": param, "code": status}
        self.body = msgspec.json.encode({"error": detail})


class Usage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Answer:
    """JSON of one answer to a completion, as a whole or as the events of a stream."""

    prefix, whole_kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, unique: str, model: str, tool: str) -> None:
        self.id = f"{self.prefix}{unique}"
        self._model = model
        self._tool = tool
        self._created = int(time.time())

    def opening(self) -> bytes:
        """Return the events before the first token."""
        return b""

    def chunk(self, text: str, reason: str | None) -> bytes:
        """Return the event of one token; the last one has the finish reason."""
        return self._chunk_event([self._chunk_choice(text, reason)])

    def ending(self, _text: str, _reason: str | None, usage: Usage, *, with_usage: bool) -> bytes:
        """Return the events after the last token; the usage is in a chunk without choices."""
        return (self._chunk_event([], usage=_usage(usage)) if with_usage else b"") + b"data: [DONE]\n\n"

    def whole(self, text: str, reason: str | None, usage: Usage) -> JSON:
        """Return the unstreamed answer."""
        return self._reply(self.whole_kind, [self._whole_choice(text, reason)], usage=_usage(usage))

    def _chunk_choice(self, text: str, reason: str | None) -> JSON:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}

    _whole_choice = _chunk_choice

    def _chunk_event(self, choices: list[JSON], **more: object) -> bytes:
        return b"data: " + msgspec.json.encode(self._reply(self.chunk_kind, choices, **more)) + b"\n\n"

    def _reply(self, kind: str, choices: list[JSON], **more: object) -> JSON:
        head = {"id": self.id, "object": kind, "created": self._created, "model": self._model}
        return {**head, "choices": choices, **more}


class ChatAnswer(Answer):
    """An answer to a chat: a text or a tool call."""

    prefix, whole_kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def opening(self) -> bytes:
        delta: JSON = {"content": ""}
        if self._tool:
            function = {"arguments": "", "name": self._tool}
            delta = {"tool_calls": [{"id": f"call_{self.id}", "type": "function", "index": 0, "function": function}]}
        return self._chunk_event([_delta_choice({"role": "assistant", **delta}, None)])

    def _chunk_choice(self, text: str, reason: str | None) -> JSON:
        delta: JSON = {"content": text}
        if self._tool:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return _delta_choice(delta, self._reason(reason)) | ({"stop_reason": None} if reason else {})

    def _whole_choice(self, text: str, reason: str | None) -> JSON:
        message: JSON = {"role": "assistant", "content": None if self._tool else text, "refusal": None}
        if self._tool:
            function = {"arguments": text, "name": self._tool}
            message["tool_calls"] = [{"id": f"call_{self.id}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None}
        return {**choice, "finish_reason": self._reason(reason), "stop_reason": None}

    def _reason(self, reason: str | None) -> str | None:
        return "tool_calls" if self._tool and reason == "stop" else reason


def _delta_choice(delta: JSON, reason: str | None) -> JSON:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _usage(usage: Usage) -> JSON:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class ResponsesAnswer(Answer):
    """An answer of the Responses API: a text or a tool call."""

    prefix = "resp_"

    def __init__(self, unique: str, model: str, tool: str) -> None:
        super().__init__(unique, model, tool)
        self._item_id = f"{'fc' if tool else 'msg'}_{unique}"
        self._number = 0

    def opening(self) -> bytes:
        item = self._item("", "in_progress")
        events = self._event("response.created", response=self._response("", "in_progress", None))
        events += self._event("response.in_progress", response=self._response("", "in_progress", None))
        events += self._event("response.output_item.added", output_index=0, item=item)
        if not self._tool:
            events += self._part("response.content_part.added", "")
        return events

    def chunk(self, text: str, _reason: str | None) -> bytes:
        kind = "response.function_call_arguments.delta" if self._tool else "response.output_text.delta"
        return self._event(kind, **self._place, delta=text)

    def ending(self, text: str, reason: str | None, usage: Usage, *, with_usage: bool) -> bytes:  # noqa: ARG002
        status = _status(reason)
        if self._tool:
            events = self._event("response.function_call_arguments.done", **self._place, arguments=text)
        else:
            events = self._event("response.output_text.done", **self._place, text=text)
            events += self._part("response.content_part.done", text)
        events += self._event("response.output_item.done", output_index=0, item=self._item(text, status))
        return events + self._event(f"response.{status}", response=self._response(text, status, usage))

    def whole(self, text: str, reason: str | None, usage: Usage) -> JSON:
        return self._response(text, _status(reason), usage)

    def _response(self, text: str, status: str, usage: Usage | None) -> JSON:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
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
            "usage": usage and _counts(usage),
        }

    @property
    def _place(self) -> JSON:
        place: JSON = {"item_id": self._item_id, "output_index": 0}
        return place if self._tool else place | {"content_index": 0}

    def _item(self, text: str, status: str) -> JSON:
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


def _status(reason: str | None) -> str:
    return "incomplete" if reason == "length" else "completed"


def _counts(usage: Usage) -> JSON:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _text_part(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": []}
