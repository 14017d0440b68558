# SPDX-License-Identifier: Apache-2.0
"""Access to an API server: its address, its certificate authority, and credentials that may be rotated.

lightkube reads kubeconfig files and service accounts, and authenticates; this is the only module that knows it.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from epp.framework.errors import ConfigurationError
from epp.kube.errors import ApiUnreachableError, error_of

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SERVICE_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 90.0
"""Longest silence in a watch; the server sends a bookmark about every minute."""
_LINE_LIMIT_BYTES = 16 * 1024 * 1024
"""Longest event; etcd refuses objects of more than 1.5 MiB by default."""
_REOPEN_SECONDS = 10.0
_MOST_CONNECTIONS = 200
_ERROR_STATUS = 400
_UNAUTHORIZED = 401

_log = structlog.get_logger()


class KubeApi:
    """An API server. Credentials and certificates are read again when the server cannot be reached or refuses them."""

    def __init__(self, kubeconfig: Path | None = None, *, as_user: str = "") -> None:
        """Read the configuration; raises ConfigurationError where there is none, or none that can be used.

        With `as_user`, act as that user, as `kubectl --as` does.
        """
        self._kubeconfig = kubeconfig
        self._headers = {"Impersonate-User": as_user} if as_user else {}
        self._config = _read_config(kubeconfig)
        self._connection = _Connection(_client_of(self._config, self._headers))
        self._opened_at = 0.0

    @property
    def server(self) -> str:
        """Its URL."""
        return self._config.cluster.server

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, or of the service account; empty where neither names one."""
        return self._config.context.namespace or ""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the body of the answer; raises ApiError or ApiUnreachableError. A `body` is sent as JSON."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": content_type}
        sent = self._answer(method, path, params or {}, read_seconds=_ANSWER_SECONDS, headers=headers, content=content)
        async with sent as answer:
            return await answer.aread()

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[AsyncIterator[list[bytes]]]:
        """Open a watch, and yield an iterator of the lines that each read brings; errors as those of `request`."""
        async with self._answer("GET", path, params, read_seconds=_SILENCE_SECONDS) as answer:
            yield _lines(answer)

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.client.aclose()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        *,
        read_seconds: float,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> AsyncGenerator["httpx2.Response"]:
        """Send a request, and yield the answer if its status is below 400."""
        import httpx2  # noqa: PLC0415  an optional dependency
        from lightkube.core.exceptions import ConfigError  # noqa: PLC0415

        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=read_seconds)
        connection = self._connection
        connection.users += 1
        try:
            client = connection.client
            request = client.build_request(
                method, path, params=dict(params), headers=headers, content=content, timeout=timeout
            )
            answer = await client.send(request, stream=True)
            try:
                if answer.status_code == _UNAUTHORIZED:
                    await self._reopen()
                if answer.status_code >= _ERROR_STATUS:
                    raise error_of(answer.status_code, await answer.aread(), answer.headers.get("retry-after", ""))
                yield answer
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, ConfigError) as error:
            await self._reopen()
            raise ApiUnreachableError(f"{self.server}: {_reason(error)}") from error
        finally:
            connection.users -= 1
            if connection is not self._connection and not connection.users:
                await connection.client.aclose()

    async def _reopen(self) -> None:
        """Read configuration and certificates again, at most once in ten seconds; open requests are not disturbed."""
        now = asyncio.get_running_loop().time()
        if self._opened_at and now - self._opened_at < _REOPEN_SECONDS:
            return
        self._opened_at = now
        try:
            config = await asyncio.to_thread(_read_config, self._kubeconfig)
            client = await asyncio.to_thread(_client_of, config, self._headers)
        except ConfigurationError as error:
            _log.warning("Kubernetes credentials not readable, the earlier ones stay in use", reason=str(error))
            return
        before, self._config, self._connection = self._connection, config, _Connection(client)
        if not before.users:
            await before.client.aclose()


class _Connection:
    """A client, and the number of requests that use it."""

    def __init__(self, client: "httpx2.AsyncClient") -> None:
        self.client = client
        self.users = 0


async def _lines(answer: "httpx2.Response") -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of each read; a longer line than allowed ends the stream with an error."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LINE_LIMIT_BYTES:
            raise ApiUnreachableError(f"an event of the watch has more than {_LINE_LIMIT_BYTES} bytes")
        if lines:
            yield [line for line in lines if line]


def _read_config(kubeconfig: Path | None) -> "SingleConfig":
    """Return the configuration in effect; raises ConfigurationError.

    In this order: the file that is given, that of KUBECONFIG, the service account of this pod, `~/.kube/config`.
    """
    try:
        from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415  an optional dependency
        from lightkube.config.models import User  # noqa: PLC0415
        from lightkube.core.exceptions import ConfigError  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"the package {error.name!r} is not installed, which talks to Kubernetes: "
            "pip install 'inference-epp[kubernetes]'"
        ) from error
    path = kubeconfig or _named_config()
    try:
        if path is None and (SERVICE_ACCOUNT / "token").exists():
            missing = [name for name in _SERVICE_VARIABLES if not os.environ.get(name)]
            if missing:
                raise ConfigurationError(
                    f"{SERVICE_ACCOUNT} has a service account, but the environment has no {' and no '.join(missing)}: "
                    "set it to the address of the API server, or set KUBECONFIG"
                )
            found = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
        else:
            found = KubeConfig.from_file(path or Path("~/.kube/config")).get()
    except (ConfigError, OSError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        where = path or "neither a service account nor ~/.kube/config"
        raise ConfigurationError(
            f"no access to Kubernetes: {where}: {_reason(error)}; set KUBECONFIG to a valid file, or run in a pod"
        ) from error
    if found is None:
        raise ConfigurationError(f"no access to Kubernetes: {path} names no current-context: set one in it")
    return found if found.user is not None else found._replace(user=User())


def _named_config() -> Path | None:
    named = os.environ.get("KUBECONFIG", "")
    if os.pathsep in named:
        raise ConfigurationError(
            f"KUBECONFIG names several files, {named}: name one, such as the output of `kubectl config view --flatten`"
        )
    return Path(named) if named else None


def _client_of(config: "SingleConfig", headers: Mapping[str, str]) -> "httpx2.AsyncClient":
    """Return a client without connections yet; raises ConfigurationError for unusable certificates or credentials."""
    import httpx2  # noqa: PLC0415  an optional dependency
    from lightkube.config.client_adapter import ConnectionParams  # noqa: PLC0415
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415

    limits = httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=10)
    try:
        return httpx2.AsyncClient(**ConnectionParams().httpx_params(config), headers=headers, limits=limits)
    except (ConfigError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
        where = config.fname or config.cluster.server
        raise ConfigurationError(f"no access to Kubernetes: {where}: {_reason(error)}; correct the file") from error


def _reason(error: BaseException) -> str:
    """Return the text of an error, on one line; that of its cause if it has none, and at least its type."""
    text = " ".join(str(error).split())
    if not text and error.__cause__ is not None:
        return _reason(error.__cause__)
    return text[:500] or type(error).__name__
