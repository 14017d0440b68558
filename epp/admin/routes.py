# SPDX-License-Identifier: Apache-2.0
"""Routes of the admin port: method and path, and what answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import msgspec

from epp.admin.answers import AdminError, BadAdminRequestError
from epp.observability.http_request import HttpRequest
from epp.observability.http_thread import Answer

_JSON = "application/json"
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
_UNREAD: Mapping[HTTPStatus, tuple[str, str]] = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("PayloadTooLarge", "the body is larger than 64 KiB: send a smaller one"),
    HTTPStatus.LENGTH_REQUIRED: ("LengthRequired", "the body is sent in chunks: send it whole, with Content-Length"),
}

Handler: TypeAlias = Callable[[HttpRequest, str], Awaitable[Answer]]
"""Takes a request and the part of its path after that of the route; may raise AdminError."""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers requests of one method and path."""

    method: str
    path: str
    """With a slash at its end, for all paths that begin with it; "/" for itself alone."""
    answer: Handler
    needs_token: bool = True
    """Not for a page that is the same for all, and asks for the token itself."""

    def rest(self, path: str) -> str | None:
        """Return the part of a path after that of the route; None for a path of another."""
        has_below = self.path.endswith("/") and self.path != "/"
        if path == self.path:
            return None if has_below else ""
        is_below = has_below and path.startswith(self.path)
        return path[len(self.path) :] if is_below else None


def find(routes: Sequence[Route], request: HttpRequest) -> tuple[Route, str]:
    """Return the first route for a request and the rest of its path; raises AdminError."""
    fitting = [(route, rest) for route in routes if (rest := route.rest(request.path)) is not None]
    if not fitting:
        known = ", ".join(f"{route.method} {route.path}" for route in routes)
        raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", f"there is nothing at this path: use {known or 'none'}")
    method = "GET" if request.method == "HEAD" else request.method
    for route, rest in fitting:
        if route.method == method:
            return route, rest
    allowed = ", ".join(dict.fromkeys(route.method for route, _ in fitting))
    raise AdminError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "MethodNotAllowed",
        f"method {request.method} is not allowed: use {allowed}",
        headers={"Allow": allowed},
    )


def is_for_all(routes: Sequence[Route], request: HttpRequest) -> bool:
    """Return whether a request is answered without a token."""
    return any(not route.needs_token and route.rest(request.path) is not None for route in routes)


def read_object(request: HttpRequest) -> Mapping[str, object]:
    """Return the JSON object that is the body; raises AdminError.

    The content type has to be that of JSON, which no page of another site can send unasked.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise AdminError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", f"send the header Content-Type: {_JSON}"
        )
    if request.unread is not None:
        kind, message = _UNREAD.get(request.unread, ("BadRequest", "the header Content-Length is no number"))
        raise AdminError(request.unread, kind, message)
    try:
        content = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAdminRequestError(f"the body is no JSON: {error}; send a JSON object") from error
    if not isinstance(content, dict):
        raise BadAdminRequestError("the body is no JSON object: send one, in braces")
    return content


def read_switch(request: HttpRequest, name: str) -> bool:
    """Return a boolean of the query, false where it is left out; raises AdminError."""
    values = request.parameters(name)
    if not values:
        return False
    if len(values) > 1 or values[0] not in _SWITCHES:
        raise BadAdminRequestError(f"{name} is {', '.join(values)!r:.60}: write true or false, once")
    return _SWITCHES[values[0]]
