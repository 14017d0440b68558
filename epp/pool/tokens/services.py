# SPDX-License-Identifier: Apache-2.0
"""Services of token ids: the render API of a vLLM server, and the tokenizer of llm-d-kv-cache 0.9 over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from io import BytesIO
from typing import Any, Literal

import aiohttp
import grpc
import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from epp.framework import MediaTokens
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import without_credentials
from epp.framework.protobuf import FieldReader, count_varints, number, part, read_uint32s
from epp.plugins.parsers.json_parser import count_of
from epp.plugins.parsers.prompt import packed_json
from epp.pool.collectors.tagging import run_in_steps
from epp.pool.tokens.chat import ChatRequest, CompletionRequest
from epp.pool.tokens.source import (
    MOST_TOKENS,
    Api,
    Features,
    Prompt,
    PromptRefusedError,
    SourceFailedError,
    Tokens,
    TokenSource,
)
from epp.routing.bodies import with_model

_MOST_CONTENT_BYTES = 8 * 1024 * 1024
_ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
"""Of 131,072 tokens, the ids take one MiB; with media, there is more that is not read."""
_MOST_ID_BYTES = 2 * 1024 * 1024
"""Text of token ids, and without media the whole answer."""
_MOST_LISTS, _MOST_COMMAS = 16 * 1024, 5 * 256 * 1024
"""JSON lists and objects of an answer, and its commas, also those that are not read: 15 milliseconds."""
_MOST_FEATURE_BYTES = 128 * 1024
_CONNECTIONS = 32
_IDLE_SECONDS = 90.0
_MOST_PROMPTS = 1024
"""Prompts in an answer: each takes ten microseconds."""
_SERVICE_AT_FAULT = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Statuses below 500 that are not about the prompt."""
_decode_features = msgspec.json.Decoder(Features).decode


class _Features(msgspec.Struct):
    mm_hashes: Raw = Raw(b"{}")
    mm_placeholders: Raw = Raw(b"{}")

    def media(self) -> tuple[MediaTokens, ...]:
        """Return the placeholders in order; raises ValueError if they overlap, or do not pair with hashes."""
        hashes, places = bytes(self.mm_hashes), bytes(self.mm_placeholders)
        if len(hashes) + len(places) > _MOST_FEATURE_BYTES:
            raise ValueError("too many placeholders")
        return _decode_features(b'{"mm_hashes":%s,"mm_placeholders":%s}' % (hashes, places)).media()


class _Rendered(msgspec.Struct):
    token_ids: Raw
    features: _Features | None = None


_decode = msgspec.json.Decoder(_Rendered | list[_Rendered]).decode


class RenderService(TokenSource):
    """Sends each body, with another model, to a vLLM server; pooled connections, HTTP/1.1."""

    most_bytes = _MOST_CONTENT_BYTES
    most_fetches = _CONNECTIONS

    def __init__(self, url: str, model: str, *, timeout_seconds: float, media_timeout_seconds: float) -> None:
        self.name = without_credentials(url).rstrip("/")
        self._url = url.rstrip("/")
        self._model = model
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._media_timeout = aiohttp.ClientTimeout(total=media_timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "epp"},
            auto_decompress=False,
        ) as self._session:
            yield

    async def fetch(self, prompt: Prompt) -> Tokens:
        assert self._session is not None  # noqa: S101  opened
        timeout = self._media_timeout if prompt.has_media else self._timeout
        try:
            body = with_model(prompt.content, self._model)
            async with self._session.post(
                f"{self._url}/v1/{prompt.api}/render", data=BytesIO(body), timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status != HTTPStatus.OK:
                    raise _refusal(answer.status, prompt.api)
                return await _read(await _body_of(answer, _ANSWER_LIMIT_BYTES if prompt.has_media else _MOST_ID_BYTES))
        except MalformedBodyError as error:
            raise PromptRefusedError from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise SourceFailedError(f"no answer within {timeout.total:g} s") from None
            raise SourceFailedError(without_credentials(str(error)) or type(error).__name__) from None


def _refusal(status: int, api: Api) -> Exception:
    if status == HTTPStatus.NOT_FOUND and api is not Api.MESSAGES:  # an unknown model; older servers lack that API
        return SourceFailedError("answered with status 404: modelName or url is wrong")
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _SERVICE_AT_FAULT:
        return PromptRefusedError()
    return SourceFailedError(f"answered with status {status}")


async def _body_of(answer: aiohttp.ClientResponse, most: int) -> bytes:
    pieces, size = [], 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > most:
            raise PromptRefusedError
        pieces.append(piece)
    return b"".join(pieces)


async def _read(answer: bytes) -> Tokens:
    """Return the tokens of an answer: one object, or for completions a list with one for each prompt."""
    if count_of("{", answer) + count_of("[", answer) > _MOST_LISTS or count_of(",", answer) > _MOST_COMMAS:
        raise PromptRefusedError  # clients choose the number of prompts and media
    try:
        found = _decode(answer)
        every = found if isinstance(found, list) else [found]
        media = every[0].features.media() if len(every) == 1 and every[0].features is not None else ()
    except (ValueError, RecursionError):
        raise SourceFailedError("the answer is not one of the render API") from None
    if not every:
        raise SourceFailedError("answered for no prompt")
    if len(every) > _MOST_PROMPTS or sum(memoryview(each.token_ids).nbytes for each in every) > _MOST_ID_BYTES:
        raise PromptRefusedError
    prompts: list[NDArray[np.uint32]] = []
    await run_in_steps(_unpack(every, prompts))
    return Tokens.joined(prompts, media)


def _unpack(every: Sequence[_Rendered], prompts: list[NDArray[np.uint32]]) -> Iterator[None]:
    """Add the ids of each prompt to `prompts`, in a step of its own."""
    left = MOST_TOKENS
    for each in every:
        packed = packed_json(bytes(each.token_ids), left)
        if packed is None:
            raise SourceFailedError("the answer has token_ids that are not whole numbers of 32 bits")
        prompts.append(np.frombuffer(packed, "<u4"))
        left = max(left - len(prompts[-1]), 0)
        yield


_MOST_MESSAGE_BYTES = 4 * 1024 * 1024
"""It is decoded and encoded in a thread, a step at a time: each holds the interpreter lock for 10 milliseconds."""
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_MOST_FIELDS = 8192
"""Fields of an answer: each takes a microsecond; a list of token ids is one."""
_MOST_PARTS = 4096
"""Messages of a chat and parts of them: each takes microseconds."""
_MOST_REASON = 300
_START_SECONDS = 30.0
"""Time to load a tokenizer."""
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
"""Statuses that may be about the prompt: the service answers INTERNAL to one that vLLM refuses."""
_decode_chat = msgspec.json.Decoder(ChatRequest).decode
_decode_completion = msgspec.json.Decoder(CompletionRequest).decode


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
    """The members of a message that the service knows; others do not reach its template."""

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
    """Sends prompts in text, and chats with images, to the service.

    The service is told to load the tokenizer at the start, and again before the next prompt after a failure.
    """

    most_bytes = _MOST_MESSAGE_BYTES
    most_fetches = 16

    def __init__(self, address: str, model: str) -> None:
        self.name = address
        self._model = part(1, model.encode())
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
        """Ask the service; before that, have the tokenizer loaded if it may not be."""
        if not self._is_ready:
            await self.prepare()
        try:
            method, encode, success = _METHODS[prompt.api]
            message = await asyncio.to_thread(encode, self._model, prompt.content)
        except (KeyError, ValueError, RecursionError):
            raise PromptRefusedError from None
        timeout = _MEDIA_TIMEOUT_SECONDS if prompt.has_media else _TIMEOUT_SECONDS
        try:
            return _read_message(await self._call(method, message, timeout), success)
        except grpc.aio.AioRpcError as error:  # its text may hold something of the prompt
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
    asked = _decode_completion(content)
    texts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    is_other = asked.truncate_prompt_tokens is not None or asked.prompt_embeds is not None
    if len(texts) != 1 or is_other or asked.add_special_tokens is False:
        raise PromptRefusedError
    return model + part(2, texts[0].encode())


def _chat(model: bytes, content: bytes) -> bytes:
    asked = _decode_chat(content)
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


def _read_message(answer: bytes, success: int) -> Tokens:
    reader = FieldReader(_MOST_FIELDS)
    found = dict(reader.fields(answer))  # of several values, the last one counts
    if not found.get(success):
        raise PromptRefusedError
    packed = bytes(_view(found.get(2)))
    media = _features(reader, _view(found.get(3))).media()
    return Tokens(count_varints(packed), read_uint32s(packed, MOST_TOKENS), (), media)


def _features(reader: FieldReader, message: memoryview) -> Features:
    """Read two maps: each entry has a modality, and a message that is a list."""
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
    """Return a string or message; empty if it is missing."""
    return value if isinstance(value, memoryview) else memoryview(b"")


_METHODS = {Api.CHAT: ("RenderChatCompletion", _chat, 4), Api.COMPLETION: ("RenderCompletion", _completion, 3)}
"""Method, encoder of the prompt, and number of the field `success` in the answer."""
