# SPDX-License-Identifier: Apache-2.0
"""The listener of the admin port."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus

import structlog
from aiohttp import web

from epp.admin.access import Access, TokenFile, is_loopback
from epp.admin.answers import AdminError
from epp.admin.page import PUBLIC_PATHS
from epp.framework.errors import ConfigurationError
from epp.runtime.addresses import HostPort
from epp.runtime.http_connections import ConnectionCounts, Cut
from epp.runtime.http_server import Handler, HttpLimits, HttpServer
from epp.telemetry.settings import AdminSettings

_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

_log = structlog.get_logger()


class AdminPort:
    """Served from its own thread."""

    def __init__(self, settings: AdminSettings, counts: ConnectionCounts | None = None) -> None:
        """Prepare; raises ConfigurationError for a port that would be open to others without a token."""
        if settings.token_file is None and not is_loopback(settings.host):
            raise ConfigurationError(
                f"--admin-host: {settings.host} can be reached from other machines, and there is no token: "
                "add --admin-token-file, or leave --admin-host out"
            )
        self.address = HostPort(settings.host, settings.port or 0)
        """Where it listens; port 0 for any free one."""
        self._access = Access(None if settings.token_file is None else TokenFile(settings.token_file))
        self._limits = HttpLimits(settings.max_connections, settings.request_seconds, settings.body_seconds)
        self._counts = counts or ConnectionCounts()
        self._server: HttpServer | None = None

    @property
    def port(self) -> int:
        """The port listened on; 0 while closed."""
        return 0 if self._server is None else self._server.port

    def open(self, routes: Sequence[web.RouteDef]) -> None:
        """Listen and serve; raises OSError."""
        app = web.Application(middlewares=[self._answer_failures, self._check_access])
        app.add_routes(routes)
        host, port = self.address.host, self.address.port
        self._server = HttpServer(host, port, app, self._limits, name="admin port", counts=self._counts)

    def close(self) -> None:
        """Stop serving; blocks until the thread has ended."""
        if self._server is not None:
            self._server.close()
            self._server = None

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._access.check(request, needs_token=request.path not in PUBLIC_PATHS)
        return await handler(request)

    @web.middleware
    async def _answer_failures(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except AdminError as error:
            if error.status in _REFUSED:
                self._counts.cut(Cut.UNAUTHORIZED)
            return error.response
        except web.HTTPNotFound:
            known = ", ".join(_known_routes(request.app))
            text = f"there is nothing at this path: use {known or 'none'}"
            return AdminError(HTTPStatus.NOT_FOUND, "NotFound", text).response
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods - {"HEAD"}))
            text = f"method {request.method} is not allowed: use {allowed}"
            headers = {"Allow": allowed}
            return AdminError(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", text, headers=headers).response
        except ConnectionError:  # the client has left
            raise
        except Exception as error:  # noqa: BLE001  other requests are still answered
            _log.exception("admin port failed", path=request.path)
            text = f"{type(error).__name__}: see the log"
            return AdminError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal", text).response


def _known_routes(app: web.Application) -> Iterator[str]:
    for route in app.router.routes():
        if route.method != "HEAD" and route.resource is not None:
            yield f"{route.method} {route.resource.canonical.partition('{')[0]}"
