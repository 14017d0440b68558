# SPDX-License-Identifier: Apache-2.0
"""Token ids from the tokenizer service of llm-d-kv-cache 0.9, over gRPC, by default on a Unix socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import grpc
import msgspec

from epp.framework.protobuf import FieldReader, count_varints, number, part, read_uint32s
from epp.pool.tokens.source import (
    MOST_TOKENS,
    Api,
    Features,
    Prompt,
    PromptRefusedError,
    SourceFailedError,
    Tokens,
    TokenSource,
    UdsTokenizerConfig,
    decode_chat,
    decode_completion,
)

_MOST_CONTENT_BYTES = 4 * 1024 * 1024
"""Largest content. A thread decodes and encodes it in steps; each step holds the interpreter lock for 10 ms."""
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_MOST_FIELDS = 8192
"""Most fields of an answer: each takes a microsecond; a list of token ids is one field."""
_MOST_PARTS = 4096
"""Most messages and message parts of a chat: each takes some microseconds."""
_MOST_REASON = 300
_START_SECONDS = 30.0
"""Time limit for loading a tokenizer."""
_TIMEOUT_SECONDS, _MEDIA_TIMEOUT_SECONDS = 5.0, 30.0
_OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # the circuit breaker waits longer
)
_PROMPT_AT_FAULT = frozenset(
    {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
)
"""Statuses that the prompt may cause: the service answers INTERNAL to a prompt that vLLM refuses."""


class _Url(msgspec.Struct):
    url: str


class _Part(msgspec.Struct):
    type: Literal["text", "image_url"]
    text: str = ""
    image_url: _Url | None = None

    def encoded(self) -> bytes:
        image = b"" if self.image_url is None else part(3, part(1, self.image_url.url.encode()))
        return part(1, self.type.encode()) + (part(2, self.text.encode()) if self.type == "text" else image)


class _Message(msgspec.Struct):
    """The fields of a message that the service passes to its template."""

    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[Any] | None = None

    @property
    def parts(self) -> list[_Part]:
        return self.content if isinstance(self.content, list) else []

    def encoded(self) -> bytes:
        fields = [part(1, self.role.encode())]
        if isinstance(self.content, str):
            fields.append(part(2, self.content.encode()))
        fields += [part(3, each.encoded()) for each in self.parts]
        if self.tool_calls:
            fields.append(part(4, msgspec.json.encode(self.tool_calls)))
        return b"".join(fields)


class UdsTokenizer(TokenSource):
    """Sends text prompts, and chats with images, to the service.

    The service must load the tokenizer at the start, and again after each failure, before the next prompt.
    """

    most_bytes = _MOST_CONTENT_BYTES
    most_fetches = 16

    def __init__(self, given: UdsTokenizerConfig, model: str) -> None:
        self.name = given.address
        self._model = part(1, given.tokenizer(model).encode())
        self._channel: grpc.aio.Channel | None = None
        self._is_ready = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with grpc.aio.insecure_channel(self.name, options=_OPTIONS) as self._channel:
            self._is_ready = False
            yield

    async def prepare(self) -> None:
        try:
            answer = await self._call("InitializeTokenizer", self._model + number(3, 1), _START_SECONDS)
            found = dict(FieldReader(_MOST_FIELDS).fields(answer))
            reason = bytes(_view(found.get(2))[:_MOST_REASON]).decode(errors="replace")
        except grpc.aio.AioRpcError as error:
            raise SourceFailedError(f"{error.code().name}: {error.details() or '':.{_MOST_REASON}}") from None
        except ValueError:
            raise SourceFailedError("the answer to InitializeTokenizer is malformed") from None
        if not found.get(1):
            raise SourceFailedError(f"the tokenizer was not loaded: {reason!r}")
        self._is_ready = True

    async def fetch(self, prompt: Prompt) -> Tokens:
        """Return the token ids from the service, which first loads the tokenizer if necessary."""
        if not self._is_ready:
            await self.prepare()
        try:
            method, encode, success = _METHODS[prompt.api]
            message = await asyncio.to_thread(encode, self._model, prompt.content)
        except (KeyError, ValueError, RecursionError):
            raise PromptRefusedError from None
        timeout = _MEDIA_TIMEOUT_SECONDS if prompt.has_media else _TIMEOUT_SECONDS
        try:
            return _read(await self._call(method, message, timeout), success)
        except grpc.aio.AioRpcError as error:  # its text may contain a part of the prompt
            self._is_ready = False
            code = error.code()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise SourceFailedError(f"no answer within {timeout:g} s") from None
            if code in _PROMPT_AT_FAULT:
                raise PromptRefusedError from None
            raise SourceFailedError(code.name) from None
        except ValueError:
            raise SourceFailedError("the answer is malformed") from None

    async def _call(self, method: str, message: bytes, timeout_seconds: float) -> bytes:
        assert self._channel is not None  # noqa: S101  opened
        path = f"/tokenization.TokenizationService/{method}"
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
        return await call(message, timeout=timeout_seconds)


def _completion(model: bytes, content: bytes) -> bytes:
    asked = decode_completion(content)
    texts = asked.texts()
    if len(texts) != 1 or asked.add_special_tokens is False:
        raise PromptRefusedError
    return model + part(2, texts[0].encode())


def _chat(model: bytes, content: bytes) -> bytes:
    asked = decode_chat(content)
    messages = msgspec.convert(asked.messages, list[_Message])
    parts = len(messages) + sum(len(message.parts) for message in messages)
    if asked.add_special_tokens or asked.truncate_prompt_tokens is not None or parts > _MOST_PARTS:
        raise PromptRefusedError
    fields = [model, *(part(2, message.encoded()) for message in messages)]
    if tools := asked.tool_list():
        fields.append(part(3, msgspec.json.encode(tools)))
    if asked.chat_template:
        fields.append(part(4, asked.chat_template.encode()))
    variables = asked.variables()
    fields.append(number(5, variables.pop("add_generation_prompt")))
    if asked.continue_final_message:
        fields.append(number(6, 1))
    if variables:
        fields.append(part(7, msgspec.json.encode(variables)))
    return b"".join(fields)


def _read(answer: bytes, success: int) -> Tokens:
    reader = FieldReader(_MOST_FIELDS)
    found = dict(reader.fields(answer))  # the last value of a repeated field counts
    if not found.get(success):
        raise PromptRefusedError
    packed = bytes(_view(found.get(2)))
    media = _features(reader, _view(found.get(3))).media()
    return Tokens(count_varints(packed), read_uint32s(packed, MOST_TOKENS), (), media)


def _features(reader: FieldReader, message: memoryview) -> Features:
    """Read the two maps in a message; each entry has a modality and a list."""
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[dict[str, int | memoryview]]] = {}
    for field, entry in reader.fields(message):
        found = dict(reader.fields(_view(entry)))
        modality = bytes(_view(found.get(1))).decode()
        values = [_view(value) for _, value in reader.fields(_view(found.get(2)))]
        if field == 1:
            hashes[modality] = [bytes(value).decode() for value in values]
        else:
            spans = [dict(reader.fields(value)) for value in values]
            places[modality] = [{"offset": span.get(1, 0), "length": span.get(2, 0)} for span in spans]
    return msgspec.convert({"mm_hashes": hashes, "mm_placeholders": places}, Features)


def _view(value: int | memoryview | None) -> memoryview:
    """Return a string or message field; empty if it is missing."""
    return value if isinstance(value, memoryview) else memoryview(b"")


_METHODS = {Api.CHAT: ("RenderChatCompletion", _chat, 4), Api.COMPLETION: ("RenderCompletion", _completion, 3)}
"""Method, encoder of the prompt, and number of the field `success` in the answer."""
