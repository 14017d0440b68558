# SPDX-License-Identifier: Apache-2.0
"""HTTP requests to scorers and Prometheus: limited in time and size, without redirects, cookies and compression."""

import asyncio
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Self

import aiohttp

from epp.framework.files import read_regular
from epp.pool.collectors.dynamic_scores.scorer import FetchError

_ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
_TOKEN_LIMIT_BYTES = 64 * 1024


class Fetcher:
    """The client for all scorers; an asynchronous context manager."""

    def __init__(self, *, timeout_seconds: float, ca_cert_path: str = "", connections: int = 8) -> None:
        self._seconds = timeout_seconds
        self._ca_cert_path = ca_cert_path
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca_cert_path or None)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "epp"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str, *, query: Mapping[str, str] | None = None, token_file: str = "") -> bytes:
        """Return the body of the response; raises FetchError."""
        return await self._fetch("GET", url, query, None, token_file)

    async def post(self, url: str, body: bytes, *, token_file: str = "") -> bytes:
        """Send JSON and return the body of the response; raises FetchError."""
        return await self._fetch("POST", url, None, body, token_file)

    async def _fetch(
        self, method: str, url: str, query: Mapping[str, str] | None, body: bytes | None, token_file: str
    ) -> bytes:
        assert self._session is not None  # noqa: S101  entered
        headers = {} if body is None else {"Content-Type": "application/json"}
        if token_file:
            headers["Authorization"] = f"Bearer {await asyncio.to_thread(_token, token_file)}"
        try:
            async with self._session.request(
                method, url, params=query, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status not in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
                    raise FetchError(f"{url} answered {answer.status}")
                return await _body(answer, url)
        except TimeoutError:
            raise FetchError(f"{url} did not answer within {self._seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchError(f"{url}: {str(error) or type(error).__name__}") from None


async def _body(answer: aiohttp.ClientResponse, url: str) -> bytes:
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise FetchError(f"{url} answered compressed, although identity was requested")
    pieces, size = [], 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > _ANSWER_LIMIT_BYTES:
            raise FetchError(f"the answer of {url} is larger than {_ANSWER_LIMIT_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _token(path: str) -> str:
    """Return the token in a file, which may be replaced at any time; raises FetchError."""
    try:
        token = read_regular(Path(path), _TOKEN_LIMIT_BYTES).data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError(f"token file {path} cannot be read: {error}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise FetchError(f"token file {path} holds no token: write one line of printable ASCII")
    return token
