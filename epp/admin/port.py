# SPDX-License-Identifier: Apache-2.0
"""The listener of the admin port: access to it and to the metrics port, its page, and the routes of several pools."""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from epp.admin.answers import AdminError, BadAdminRequestError, NotFoundError, as_json
from epp.framework.errors import ConfigurationError
from epp.framework.files import read_regular
from epp.kube.reviews import NoVerdictError, TokenReviews, Verdict
from epp.runtime.addresses import HostPort, is_ip
from epp.runtime.followed_files import FollowedFile
from epp.runtime.http_connections import ConnectionCounts, Cut
from epp.runtime.http_server import Handler, HttpLimits, response
from epp.telemetry.page import OperatorPort, reason
from epp.telemetry.settings import AdminSettings

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
"""Files of the page by path. They need no token: the page asks for the token, and sends it with requests for data."""
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_routes() -> tuple[web.RouteDef, ...]:
    files = resources.files("epp.admin") / "page"

    def route(path: str, name: str, kind: str) -> web.RouteDef:
        content = files.joinpath(name).read_bytes()

        async def send(_request: web.Request) -> web.Response:
            return response(content, {**_HEADERS, "Content-Type": kind})

        return web.get(path, send)

    return tuple(route(path, *file) for path, file in _FILES.items())


_PREFIX = "/pools"


def routes_of_pools(pools: Mapping[str, web.UrlDispatcher]) -> Sequence[web.RouteDef]:
    """Return the routes that serve those of each pool below its name.

    `pools` has the routes of each pool by its name; pools may join and leave while it is read in another thread.
    """

    async def names(_request: web.Request) -> web.Response:
        return as_json({"pools": sorted(pools)})

    async def in_pool(request: web.Request) -> web.StreamResponse:
        name = request.match_info["pool"]
        routes = pools.get(name)
        if routes is None:
            raise NotFoundError(f"no pool {name!r} is served here: see {_PREFIX}")
        path = path_in_pool(request.rel_url.raw_path)  # an encoded slash in a name stays encoded
        match = await routes.resolve(request.clone(rel_url=request.rel_url.with_path(path, encoded=True)))
        if isinstance(match.http_exception, web.HTTPNotFound):
            raise _nothing_here(routes)
        if match.http_exception is not None:
            raise match.http_exception
        request.match_info.update(match)
        return await match.handler(request)

    return [web.get(_PREFIX, names), web.route("*", f"{_PREFIX}/{{pool}}/{{path:.*}}", in_pool)]


def path_in_pool(path: str) -> str:
    if not path.startswith(f"{_PREFIX}/"):
        return path
    _, slash, rest = path.removeprefix(f"{_PREFIX}/").partition("/")
    return f"{slash}{rest}"


_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site in requests of programs and of our own page."""
_SCHEME: Final = "bearer "
_LEAST_CHARACTERS: Final = 16
_MOST_TOKEN_BYTES: Final = 4096
_LONGEST_CLUSTER_TOKEN: Final = 8192
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_REMEDY: Final = "write one line of 16 or more letters, digits and signs into it (`openssl rand -hex 32` makes one)"

_log = structlog.get_logger()


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or localhost."""
    return host.lower() == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


class TokenFile:
    """The token in a file, read again at the next request after a change; an unusable new version changes nothing."""

    def __init__(self, path: Path, flag: str = "--admin-token-file") -> None:
        """Read the file, which `flag` names; raises ConfigurationError."""
        self._path = path
        self._flag = flag
        try:
            self._file = FollowedFile(partial(_read_token, path), path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{flag}: {reason(error, path)}", remedy=_REMEDY) from error

    def matches(self, token: str) -> bool:
        """Return whether it is the token, in constant time."""
        if self._file.renew(self._reject):
            _log.info("token changed", flag=self._flag, file=str(self._path))
        return hmac.compare_digest(_digest(token), self._file.value)

    @property
    def refusal(self) -> AdminError:
        return _unauthorized("the token is missing or wrong", f"the content of {self._flag}")

    async def access(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request to the metrics port; None if access is granted."""
        return None if self.matches(bearer(request)) else self.refusal.response

    def _reject(self, error: Exception) -> None:
        _log.warning(
            "new token rejected",
            flag=self._flag,
            reason=reason(error, self._path),
            remedy=_REMEDY,
        )


def _read_token(path: Path) -> bytes:
    """Return the digest of the token in a file; raises OSError and ValueError."""
    content = read_regular(path, _MOST_TOKEN_BYTES).data
    token = content.strip().decode("ascii", "replace")
    if not len(token) >= _LEAST_CHARACTERS or len(content) > _MOST_TOKEN_BYTES:
        raise ValueError(f"has a token of {len(token)} characters")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("has spaces, or characters that are not allowed in a header")
    return _digest(token)


class ClusterAccess:
    """Access to the metrics port by a review of the token in the cluster; called in the thread of the page.

    Returns the refusal of a request; None if access is granted.
    """

    def __init__(self, reviews: TokenReviews) -> None:
        self._reviews = reviews
        self._loop: asyncio.AbstractEventLoop | None = None
        self._problem = ""

    def start(self) -> None:
        """Send reviews on the running event loop."""
        self._loop = asyncio.get_running_loop()

    async def __call__(self, request: web.Request) -> web.Response | None:
        token = bearer(request)
        if not token or len(token) > _LONGEST_CLUSTER_TOKEN:
            return _unknown_account("the token is missing or too long")
        try:
            verdict = await self._verdict(token, request.path)
        except (NoVerdictError, RuntimeError) as error:  # RuntimeError: the loop is closed
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("metrics page: access cannot be reviewed by the cluster", reason=self._problem)
            text = "access cannot be reviewed by the Kubernetes API: see the log of the picker, and retry"
            later = {"Retry-After": "5"}
            return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable", text, headers=later).response
        if verdict is Verdict.ALLOWED:
            return None
        if verdict is Verdict.UNKNOWN:
            return _unknown_account("the Kubernetes API does not know the token")
        text = f"this account may not get {request.path}: give it a ClusterRole with that path in nonResourceURLs"
        return _forbidden(text).response

    async def _verdict(self, token: str, path: str) -> Verdict:
        if self._loop is None:
            raise NoVerdictError("the picker is starting")
        asked = self._reviews.verdict(token, path)
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:
            asked.close()
            raise
        return await asyncio.wrap_future(future)


def _unauthorized(why: str, wanted: str) -> AdminError:
    return AdminError(
        HTTPStatus.UNAUTHORIZED,
        "Unauthorized",
        f"{why}: send `Authorization: Bearer` with {wanted}",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _forbidden(message: str) -> AdminError:
    return AdminError(HTTPStatus.FORBIDDEN, "Forbidden", message)


def bearer(request: web.Request) -> str:
    """Return the token of a request; empty if it has none."""
    value = request.headers.get("authorization", "")
    return value[len(_SCHEME) :].strip() if value.lower().startswith(_SCHEME) else ""


def _unknown_account(why: str) -> web.Response:
    return _unauthorized(why, "the token of a service account that may get this path").response


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _nothing_here(routes: web.UrlDispatcher) -> NotFoundError:
    known = ", ".join(
        f"{route.method} {route.resource.canonical.partition('{')[0]}"
        for route in routes.routes()
        if route.method != "HEAD" and route.resource is not None
    )
    return NotFoundError(f"there is nothing at this path: use {known or 'none'}")


class AdminPort(OperatorPort):
    def __init__(self, settings: AdminSettings, counts: ConnectionCounts | None = None) -> None:
        """Prepare; raises ConfigurationError if other machines could use the port without a token."""
        if settings.token_file is None and not is_loopback(settings.host):
            raise ConfigurationError(
                f"--admin-host: {settings.host} can be reached from other machines, and there is no token: "
                "add --admin-token-file, or leave --admin-host out"
            )
        self.address = HostPort(settings.host, settings.port or 0)
        """Address to listen on; port 0 for any free one."""
        self._token = None if settings.token_file is None else TokenFile(settings.token_file)
        self.limits = HttpLimits(settings.max_connections, settings.request_seconds, settings.body_seconds)
        self.counts = counts or ConnectionCounts()

    def open(self, routes: Sequence[web.RouteDef]) -> None:
        """Listen and serve; raises OSError."""
        self._serve(self.address, routes, (self._answer_failures, self._check_access), name="admin port")

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("host", "")
        self._check_host(host)
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none").lower()
        if site not in _OWN_SITES or (origin is not None and origin.lower() != f"http://{host.lower()}"):
            raise _forbidden("the request comes from a page of another site: send it from a program")
        is_public = path_in_pool(request.path) in _FILES
        if not is_public and self._token is not None and not self._token.matches(bearer(request)):
            raise self._token.refusal
        return await handler(request)

    def _check_host(self, host: str) -> None:
        """Refuse host names without a token: any name can be pointed at this machine (DNS rebinding)."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if not name:
            raise BadAdminRequestError("the header Host is missing or invalid: send the host that you connect to")
        if self._token is None and not is_loopback(name):
            raise _forbidden(
                "without a token, this port only accepts the hosts 127.0.0.1, [::1] and localhost: connect to one of "
                "these, or start with --admin-token-file"
            )

    @web.middleware
    async def _answer_failures(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except AdminError as error:
            if error.status in _REFUSED:
                self.counts.cut(Cut.UNAUTHORIZED)
            return error.response
        except web.HTTPNotFound:
            return _nothing_here(request.app.router).response
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
