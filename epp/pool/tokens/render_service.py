# SPDX-License-Identifier: Apache-2.0
"""Token ids from the render API of a vLLM server, the same as in the engine."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from io import BytesIO

import aiohttp
import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from epp.framework import MediaTokens
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import without_credentials
from epp.framework.quantities import parse_duration
from epp.plugins.parsers.json_parser import count_of
from epp.plugins.parsers.prompt import packed_json
from epp.pool.collectors.tagging import run_in_steps
from epp.pool.tokens.source import (
    MOST_TOKENS,
    Api,
    Features,
    Prompt,
    PromptRefusedError,
    SourceFailedError,
    Tokens,
    TokenSource,
    Vllm,
)
from epp.routing.bodies.model_member import with_model

_MOST_CONTENT_BYTES = 8 * 1024 * 1024
_ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
"""Largest answer: the ids of 131,072 tokens take 1 MiB; with media, the answer has further data that is not read."""
_MOST_ID_BYTES = 2 * 1024 * 1024
"""Largest text of token ids, and largest answer without media."""
_MOST_LISTS, _MOST_COMMAS = 16 * 1024, 5 * 256 * 1024
"""Most JSON lists and objects, and most commas, in an answer: decoding them takes 15 milliseconds."""
_MOST_FEATURE_BYTES = 128 * 1024
_CONNECTIONS = 32
_IDLE_SECONDS = 90.0
_MOST_PROMPTS = 1024
"""Most prompts in an answer: each takes ten microseconds."""
_SERVICE_AT_FAULT = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Statuses below 500 that do not depend on the prompt."""
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
    """Sends each request body, with the configured model, to a vLLM server over pooled HTTP/1.1 connections."""

    most_bytes = _MOST_CONTENT_BYTES
    most_fetches = _CONNECTIONS

    def __init__(self, given: Vllm, model: str) -> None:
        self.name = without_credentials(given.url).rstrip("/")
        self._url = given.url.rstrip("/")
        self._model = model
        self._timeout = aiohttp.ClientTimeout(total=parse_duration(given.timeout))
        self._media_timeout = aiohttp.ClientTimeout(total=parse_duration(given.mm_timeout))
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
    """Return the tokens of an answer: one object, or for completions a list with one object for each prompt."""
    if count_of("{", answer) + count_of("[", answer) > _MOST_LISTS or count_of(",", answer) > _MOST_COMMAS:
        raise PromptRefusedError  # clients choose the number of prompts and media
    try:
        found = _decode(answer)
        every = found if isinstance(found, list) else [found]
        media = every[0].features.media() if len(every) == 1 and every[0].features is not None else ()
    except (ValueError, RecursionError):
        raise SourceFailedError("the answer is not in the format of the render API") from None
    if not every:
        raise SourceFailedError("the answer has no prompts")
    if len(every) > _MOST_PROMPTS or sum(memoryview(each.token_ids).nbytes for each in every) > _MOST_ID_BYTES:
        raise PromptRefusedError
    prompts: list[NDArray[np.uint32]] = []
    await run_in_steps(_unpack(every, prompts))
    return Tokens.joined(prompts, media)


def _unpack(every: Sequence[_Rendered], prompts: list[NDArray[np.uint32]]) -> Iterator[None]:
    """Add the ids of each prompt to `prompts`, one prompt per step."""
    left = MOST_TOKENS
    for each in every:
        packed = packed_json(bytes(each.token_ids), left)
        if packed is None:
            raise SourceFailedError("the answer has token_ids that are not whole numbers of 32 bits")
        prompts.append(np.frombuffer(packed, "<u4"))
        left = max(left - len(prompts[-1]), 0)
        yield
