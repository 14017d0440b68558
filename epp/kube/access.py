# SPDX-License-Identifier: Apache-2.0
"""Requests to an API server, with credentials that may be rotated."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from epp.framework.errors import ConfigurationError
from epp.kube.configuration import SERVICE_ACCOUNT, SETTING, client_of, credential_errors, read_config, reason_of

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

_CONNECT_SECONDS = 10.0
_RESPONSE_SECONDS = 30.0
_SILENCE_SECONDS = 90.0
"""Longest silence in a watch; most servers send a bookmark about every minute."""
_LINE_LIMIT_BYTES = 16 * 1024 * 1024
"""Longest event; etcd refuses objects of more than 1.5 MiB by default."""
_REOPEN_SECONDS = 10.0
_ERROR_STATUS = 400
UNAUTHORIZED, FORBIDDEN, EXPIRED = 401, 403, 410
REFUSED = frozenset({UNAUTHORIZED, FORBIDDEN})
ABSENT = frozenset({404, 405})
"""Statuses for a kind, or a version of it, that is not installed."""

_log = structlog.get_logger()


class ApiUnreachableError(Exception):
    """No response from the API server: no connection, a TLS failure, a timeout, or unreadable credentials."""


class ApiError(Exception):
    def __init__(self, status: int, reason: str = "", message: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(message or reason or f"HTTP status {status}")
        self.status = status
        """The HTTP status, or the code of the Status object in a watch."""
        self.reason = reason
        """Reason in the Status object, such as Forbidden or Expired."""
        self.retry_after = retry_after
        """Requested delay in seconds; 0 if the server requests none."""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""


def error_of(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Return the error for a response or a watch event whose body may be a Status object."""
    try:
        found = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _Status()
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiError(found.code or status, found.reason, found.message[:1000], retry_after=seconds)


class KubeApi:
    """Client of an API server; it reloads credentials and certificates after a connection failure or a status 401."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        context: str = "",
        setting: str = SETTING,
        as_user: str = "",
        service_account: Path = SERVICE_ACCOUNT,
        read: "Callable[[], Awaitable[SingleConfig]] | None" = None,
    ) -> None:
        """Read the configuration; raises ConfigurationError if it is missing or unusable.

        `read` replaces the file: it is called before the first request and raises ConfigurationError. `context` is a
        context of the kubeconfig, empty for the current one; `setting` is the name of the setting, for messages.
        `as_user` is the user to impersonate, as with `kubectl --as`.
        """
        from_file = partial(read_config, kubeconfig, service_account, context=context, setting=setting)
        self._read = read or partial(asyncio.to_thread, from_file)
        self.trouble = "" if read is None else "the credentials have not been read yet"
        """Reason that newer credentials are not in use; empty if the last read succeeded."""
        self._headers = {"Impersonate-User": as_user} if as_user else {}
        self._setting = setting
        self._config: SingleConfig | None = None
        self._connection: _Connection | None = None
        if read is None:
            self._config = from_file()
            self._connection = _Connection(client_of(self._config, self._headers))
        self._is_outdated = read is not None
        self._opened_at = 0.0

    @property
    def server(self) -> str:
        """URL of the API server, or the setting with its configuration while the URL is unknown."""
        return self._setting if self._config is None else self._config.cluster.server

    @property
    def namespace(self) -> str:
        """Namespace of the kubeconfig's context or of the service account; empty if neither has one."""
        return "" if self._config is None else self._config.context.namespace or ""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the body of the response; raises ApiError or ApiUnreachableError. `body` is encoded as JSON."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": content_type}
        sent = self._send(method, path, params or {}, _RESPONSE_SECONDS, headers=headers, content=content)
        async with sent as response:
            return await response.aread()

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[AsyncIterator[list[bytes]]]:
        """Open a watch and yield an iterator of the lines in each read; raises as `request` does.

        The iterator ends with the watch, or after 90 seconds without data.
        """
        async with self._send("GET", path, params, _SILENCE_SECONDS) as response:
            yield _lines(response)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.client.aclose()

    def renew(self) -> None:
        """Read the configuration again before the next request."""
        self._is_outdated, self._opened_at = True, 0.0

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        read_seconds: float,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> AsyncGenerator["httpx2.Response"]:
        import httpx2  # noqa: PLC0415  an optional dependency

        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=read_seconds)
        if self._is_outdated:
            await self._reopen()
        connection = self._connection
        if connection is None:
            raise ApiUnreachableError(self.trouble)
        connection.users += 1
        try:
            client = connection.client
            request = client.build_request(
                method, path, params=dict(params), headers=headers, content=content, timeout=timeout
            )
            try:
                response = await client.send(request, stream=True)
            except credential_errors() as error:
                raise _CredentialsError(f"no credentials: {reason_of(error)}") from error
            try:
                if response.status_code == UNAUTHORIZED:
                    await self._reopen()
                if response.status_code >= _ERROR_STATUS:
                    raise error_of(
                        response.status_code, await response.aread(), response.headers.get("retry-after", "")
                    )
                yield response
            finally:
                await response.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, _CredentialsError) as error:
            await self._reopen()
            raise ApiUnreachableError(f"{self.server}: {reason_of(error)}") from error
        finally:
            connection.users -= 1
            if connection is not self._connection and not connection.users:
                await connection.client.aclose()

    async def _reopen(self) -> None:
        """Reload configuration and certificates, at most once in ten seconds; open requests keep their connection."""
        now = asyncio.get_running_loop().time()
        if self._opened_at and now - self._opened_at < _REOPEN_SECONDS:
            return
        self._opened_at, self._is_outdated = now, False
        try:
            config = await self._read()
            client = await asyncio.to_thread(client_of, config, self._headers)
        except ConfigurationError as error:
            _log.warning("Kubernetes credentials not readable, the earlier ones stay in effect", reason=str(error))
            self.trouble, self._is_outdated = str(error), self._connection is None
            return
        self.trouble = ""
        before, self._config, self._connection = self._connection, config, _Connection(client)
        if before is not None and not before.users:
            await before.client.aclose()


@dataclass(slots=True)
class _Connection:
    client: "httpx2.AsyncClient"
    users: int = 0


class _CredentialsError(Exception):
    """The credentials of a request cannot be read."""


async def _lines(response: "httpx2.Response") -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of each read; raises ApiUnreachableError for a line over the limit."""
    import httpx2  # noqa: PLC0415  an optional dependency

    rest = b""
    with suppress(httpx2.ReadTimeout):  # the next watch shows whether the server is alive
        async for piece in response.aiter_bytes():
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LINE_LIMIT_BYTES:
                raise ApiUnreachableError(f"an event of the watch has more than {_LINE_LIMIT_BYTES} bytes")
            if lines:
                yield [line for line in lines if line]
