# SPDX-License-Identifier: Apache-2.0
"""The listener of the admin port: who may use it and the metrics port, its page, and the routes of several pools."""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Final, TypeAlias, cast
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from epp.admin.answers import AdminError, BadAdminRequestError, as_json
from epp.framework.errors import ConfigurationError
from epp.framework.files import read_regular
from epp.kube.reviews import NoVerdictError, TokenReviews, Verdict
from epp.runtime.addresses import HostPort
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
"""Files of the page by path. They need no token: the page asks for it, and sends it with each request for data."""
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
_POOL = "pool"

Routes: TypeAlias = Mapping[str, Sequence[web.RouteDef]]
"""The routes of each pool, by its name."""


def routes_of_pools(like: Sequence[web.RouteDef], pools: Callable[[], Routes]) -> Sequence[web.RouteDef]:
    """Return the routes of all pools that there will be; `like` are those of one, as all pools have the same.

    `pools` returns the pools of that moment; called in any thread.
    """

    def find(route: web.RouteDef) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            name, known = request.match_info[_POOL], pools()
            for each in known.get(name, ()):
                if (each.method, each.path) == (route.method, route.path):
                    return await cast("Handler", each.handler)(request)
            text = f"no pool {name!r} is served here: see {_PREFIX}"
            raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", text)

        return handle

    async def names(_request: web.Request) -> web.Response:
        return as_json({"pools": sorted(pools())})

    below = [web.RouteDef(each.method, f"{_PREFIX}/{{{_POOL}}}{each.path}", find(each), each.kwargs) for each in like]
    return [web.get(_PREFIX, names), *below]


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
_REMEDY: Final = "write one line of 16 letters, digits and signs or more into it, such as `openssl rand -hex 32` prints"

_log = structlog.get_logger()


def is_loopback(host: str) -> bool:
    """Return whether an IP address, or the name localhost, is of this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenFile:
    """Read when it changes, as a request comes; an unusable new version changes nothing."""

    def __init__(self, path: Path, flag: str = "--admin-token-file") -> None:
        """Read it; raises ConfigurationError. `flag` is the one that names it."""
        self._path = path
        self._flag = flag
        try:
            self._file = FollowedFile(partial(_read_token, path), path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{flag}: {reason(error, path)}", remedy=_REMEDY) from error

    def matches(self, token: str) -> bool:
        """Return whether it is the token, in a time that tells nothing of it."""
        if self._file.renew(self._reject):
            _log.info("token changed", flag=self._flag, file=str(self._path))
        return hmac.compare_digest(_digest(token), self._file.value)

    @property
    def refusal(self) -> AdminError:
        return _unauthorized("the token is missing or wrong", f"the content of {self._flag}")

    async def access(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request to the metrics port; None for one that may be answered."""
        return None if self.matches(bearer(request)) else self.refusal.response

    def _reject(self, error: Exception) -> None:
        _log.warning("token stays as it was", flag=self._flag, reason=reason(error, self._path), remedy=_REMEDY)


def _read_token(path: Path) -> bytes:
    """Return the digest of the token in a file; raises OSError and ValueError."""
    content = read_regular(path, _MOST_TOKEN_BYTES).data
    token = content.strip().decode("ascii", "replace")
    if not len(token) >= _LEAST_CHARACTERS or len(content) > _MOST_TOKEN_BYTES:
        raise ValueError(f"has a token of {len(token)} characters")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("has blanks or characters that no header can have")
    return _digest(token)


class ClusterAccess:
    """Says of a request to the metrics port why it is refused; asked in the thread of the page."""

    def __init__(self, reviews: TokenReviews) -> None:
        self._reviews = reviews
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said = ""

    def start(self) -> None:
        """Ask the cluster on the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    async def __call__(self, request: web.Request) -> web.Response | None:
        token = bearer(request)
        if not token or len(token) > _LONGEST_CLUSTER_TOKEN:
            return _unknown_account("there is no token")
        try:
            verdict = await self._verdict(token, request.path)
        except (NoVerdictError, RuntimeError) as error:  # RuntimeError: the loop is closed
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("metrics page: the cluster cannot be asked who may read it", reason=self._said)
            text = "the Kubernetes API cannot be asked who may read this: see the log of the picker, and ask again"
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
            raise NoVerdictError("the picker starts")
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


class AdminPort(OperatorPort):
    def __init__(self, settings: AdminSettings, counts: ConnectionCounts | None = None) -> None:
        """Prepare; raises ConfigurationError for a port that would be open to others without a token."""
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
            raise _forbidden("this request is of a page of another site: ask from a program")
        is_public = path_in_pool(request.path) in _FILES
        if not is_public and self._token is not None and not self._token.matches(bearer(request)):
            raise self._token.refusal
        return await handler(request)

    def _check_host(self, host: str) -> None:
        """Refuse a name that anyone may point at this machine, where no token tells friends from others."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if not name:
            raise BadAdminRequestError("the header Host is missing or no host: send the host that you connect to")
        if self._token is None and not is_loopback(name):
            raise _forbidden(
                "without a token, this port is for 127.0.0.1, [::1] and localhost alone: connect to one of these, or "
                "start with --admin-token-file"
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
            known = ", ".join(
                f"{route.method} {route.resource.canonical.partition('{')[0]}"
                for route in request.app.router.routes()
                if route.method != "HEAD" and route.resource is not None
            )
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
