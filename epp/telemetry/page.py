# SPDX-License-Identifier: Apache-2.0
"""The metrics port: `/metrics`, `/healthz`, cluster scores, explanations of placements, and its TLS."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry

from epp.extproc.tls import CertificateFiles, server_context
from epp.framework.errors import ConfigurationError
from epp.framework.files import read_regular
from epp.runtime.addresses import HostPort
from epp.runtime.followed_files import FollowedFile
from epp.runtime.http_connections import ConnectionCounts, Contexts, Cut
from epp.runtime.http_server import Handler, HttpLimits, HttpServer, response
from epp.telemetry.pool_series import LOCAL_CLUSTER, SCORES_PATH
from epp.telemetry.rendering import BusyError, Rendering

_HEALTH_PATH: Final = "/healthz"
PLACEMENTS_PATH: Final = "/debug/placements"
"""Path as in the hub's own debugger; `/<namespace>/<name>` of one placement may follow."""
_LONGEST_NAME: Final = 253
_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_JSON: Final = {"Content-Type": "application/json"}
Access: TypeAlias = Callable[[web.Request], Awaitable[web.Response | None]]
"""Returns the refusal of a request; None if access is granted."""

_log = structlog.get_logger()

_DIRECTORY_FLAG, _AUTHORITY_FLAG = "--metrics-cert-dir", "--metrics-client-ca-file"
_MOST_BYTES = 1024 * 1024


class OperatorPort:
    """A port for operators, served in its own thread while it is open."""

    limits: HttpLimits
    counts: ConnectionCounts
    tls: Contexts | None = None
    _server: HttpServer | None = None

    @property
    def port(self) -> int:
        """The port listened on; 0 while closed."""
        return 0 if self._server is None else self._server.port

    def _serve(
        self, at: HostPort, routes: Iterable[web.RouteDef], middlewares: Iterable[Middleware], *, name: str
    ) -> None:
        app = web.Application(middlewares=middlewares)
        app.add_routes(routes)
        self._server = HttpServer(at.host, at.port, app, self.limits, name=name, counts=self.counts, tls=self.tls)

    def close(self) -> None:
        """Stop serving; block until the thread has ended."""
        if self._server is not None:
            self._server.close()
            self._server = None


@dataclass(eq=False)
class OperatorPage(OperatorPort):
    """The metrics port; its callables are called in any thread."""

    registry: CollectorRegistry
    health: Callable[[], Mapping[str, object]]
    limits: HttpLimits = HttpLimits()  # noqa: RUF009  frozen
    _: KW_ONLY
    scores: Callable[[str], Mapping[str, object]] | None = None
    """Returns the scores of all clusters, given the name of the local one."""
    explanations: Callable[[], Mapping[str, object]] | None = None
    """Returns the explanations of placements, by `namespace/name`."""
    access: Access | None = None
    """None to grant all clients access to all pages."""
    counts: ConnectionCounts = field(default_factory=ConnectionCounts)
    tls: Contexts | None = None
    debug: Callable[[], web.RouteDef] | None = None
    """Returns the route of an extra page; called when the port opens, on the event loop that owns the plugins."""

    def open(self, host: str, port: int) -> None:
        """Listen and serve; raises OSError."""
        rendering, health = Rendering(self.registry), Rendering(self.registry)

        async def healthz(_request: web.Request) -> web.Response:
            ready, state = await health.shared(_HEALTH_PATH, self._state)
            return response(state, _JSON, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

        routes = [web.get("/metrics", rendering.page), web.get(_HEALTH_PATH, healthz)]
        if self.scores is not None:
            routes.append(web.get(SCORES_PATH, partial(_cluster_scores, rendering, self.scores)))
        if self.explanations is not None:
            placements = partial(_placements, rendering, self.explanations)
            routes += [web.get(PLACEMENTS_PATH, placements), web.get(PLACEMENTS_PATH + "/{name:.*}", placements)]
        if self.debug is not None:
            routes.append(self.debug())
        middlewares = self._answer_failures, self._check_access
        self._serve(HostPort(host, port), routes, middlewares, name="metrics port")

    @web.middleware
    async def _answer_failures(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            known = dict.fromkeys(each.canonical for each in request.app.router.resources())
            paths = " or ".join(path for path in known if "{" not in path)
            return _line(HTTPStatus.NOT_FOUND, f"not found: use {paths}")
        except web.HTTPMethodNotAllowed:
            refusal = f"method {request.method} is not allowed: use GET or HEAD"
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, refusal, {"Allow": "GET, HEAD"})
        except BusyError:
            self.counts.cut(Cut.BUSY)
            text = "busy: too many requests for selected metrics; retry, or request the whole page"
            return _line(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "1"})
        except Exception as error:  # noqa: BLE001  other requests are still answered
            _log.exception("metrics port failed", path=request.path)
            return _line(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log")

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = None if self.access is None else await self.access(request)
        if refusal is None:
            return await handler(request)
        if request.path == _HEALTH_PATH and request.method in {"GET", "HEAD"}:  # probes send no token
            status = HTTPStatus((await handler(request)).status)
            return response(json.dumps({"ready": status is HTTPStatus.OK}).encode() + b"\n", _JSON, status)
        self.counts.cut(Cut.UNAUTHORIZED)
        return refusal

    def _state(self) -> tuple[bool, bytes]:
        """Return whether the picker is ready, and its health as JSON."""
        state = self.health()
        return bool(state.get("ready")), json.dumps(state).encode() + b"\n"


async def _cluster_scores(
    rendering: Rendering, scores: Callable[[str], Mapping[str, object]], request: web.Request
) -> web.Response:
    """Return the scores of all clusters; `?cluster=NAME` names the local one."""
    local = request.query.get("cluster", LOCAL_CLUSTER)
    if not 0 < len(local) <= _LONGEST_NAME:
        text = f"cluster has {len(local)} characters: write a name of 1 to {_LONGEST_NAME}"
        return _line(HTTPStatus.BAD_REQUEST, text)
    body = await rendering.shared((SCORES_PATH, local), lambda: json.dumps(scores(local)).encode() + b"\n", chosen=True)
    return response(body, _JSON)


async def _placements(
    rendering: Rendering, explanations: Callable[[], Mapping[str, object]], request: web.Request
) -> web.Response:
    name = request.match_info.get("name", "").strip("/")
    found = explanations()
    if name and name not in found:
        return _line(HTTPStatus.NOT_FOUND, f"this placement is not evaluated here: see {PLACEMENTS_PATH}")
    shown = found[name] if name else found
    body = await rendering.shared((PLACEMENTS_PATH, name), lambda: msgspec.json.encode(shown) + b"\n", chosen=True)
    return response(body, _JSON)


def _line(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return response(f"{text}\n".encode(), {**_TEXT, **(headers or {})}, status)


class PageTls:
    """Returns the TLS context of each new connection. Changed files take effect with the next connection."""

    def __init__(self, directory: Path, client_ca_file: Path | None = None) -> None:
        """Read the files; raises ConfigurationError. Without `client_ca_file`, clients need no certificate."""
        self._files = CertificateFiles(directory, _DIRECTORY_FLAG)
        self._authorities: FollowedFile[str] | None = None
        if (path := client_ca_file) is not None:
            try:
                self._authorities = FollowedFile(partial(_read_authorities, path), path)
            except (OSError, ValueError) as error:
                problem = f"{_AUTHORITY_FLAG}: {reason(error, path)}: write PEM certificates of authorities into it"
                raise ConfigurationError(problem) from error
        self._path = path
        self._context = self._new()

    async def __call__(self) -> ssl.SSLContext:
        await asyncio.to_thread(self._renew)  # file systems may be slow
        return self._context

    def _renew(self) -> None:
        is_new = self._files.renew()
        if self._authorities is not None and self._authorities.renew(self._reject):
            is_new = True
            _log.info("client authorities changed", file=str(self._path))
        if is_new:
            self._context = self._new()

    def _reject(self, error: Exception) -> None:
        _log.warning("new client authorities rejected", flag=_AUTHORITY_FLAG, reason=reason(error, self._path))

    def _new(self) -> ssl.SSLContext:
        context = server_context(*self._files.pair, ssl.TLSVersion.TLSv1_2, alpn="http/1.1")
        if self._authorities is not None:
            context.load_verify_locations(cadata=self._authorities.value)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _read_authorities(path: Path) -> str:
    content = read_regular(path, _MOST_BYTES).data
    if len(content) > _MOST_BYTES:
        raise ValueError(f"has more than {_MOST_BYTES} bytes")
    text = content.decode("ascii", "replace")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ValueError("has no certificate")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text)  # raises SSLError, an OSError
    return text


def reason(error: Exception, path: Path | None) -> str:
    """Return the reason that a file cannot be used."""
    if isinstance(error, ssl.SSLError):
        return f"{path} has a certificate that cannot be read"
    return f"{path} cannot be read: {error.strerror}" if isinstance(error, OSError) else f"{path} {error}"
