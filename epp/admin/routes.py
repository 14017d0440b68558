# SPDX-License-Identifier: Apache-2.0
"""Routes of the admin port: method and path, and what answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import msgspec
import yaml

from epp.admin.answers import AdminError, BadAdminRequestError
from epp.runtime.plain_yaml import PlainLoader, refuse_unsafe
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer

_JSON = "application/json"
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
_YAML = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_MOST_NESTED = 100
MOST_BYTES = 64 * 1024
"""Of a body, for routes that say nothing else."""
_UNREAD: Mapping[HTTPStatus, tuple[str, str]] = {
    HTTPStatus.LENGTH_REQUIRED: ("LengthRequired", "the body is sent in chunks: send it whole, with Content-Length"),
}

Handler: TypeAlias = Callable[[HttpRequest, str], Awaitable[Answer]]
"""Takes a request and the part of its path after that of the route; may raise AdminError."""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers requests of one method and path."""

    method: str
    path: str
    """With a slash at its end, for all paths that begin with it; "/" for itself only."""
    answer: Handler
    needs_token: bool = True
    """Not for a page that is the same for all, and asks for the token itself."""
    most_bytes: int = MOST_BYTES
    """Largest body that is read."""

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


def largest_body(routes: Sequence[Route], request: HttpRequest) -> int:
    """Return the most bytes that the route for a request reads; 0 for no such route."""
    try:
        return find(routes, request)[0].most_bytes
    except AdminError:
        return 0


def read_object(request: HttpRequest, *, most_bytes: int = MOST_BYTES, or_yaml: bool = False) -> Mapping[str, object]:
    """Return the JSON object that is the body, `or_yaml` of 64 KiB at most; raises AdminError.

    The content type has to be that of either, which no page of another site can send unasked.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_yaml = or_yaml and kind in _YAML
    if kind != _JSON and not is_yaml:
        wanted = f"{_JSON}, or application/yaml" if or_yaml else _JSON
        raise AdminError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", f"send the header Content-Type: {wanted}"
        )
    if request.unread is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        raise _too_large(f"the body is larger than {most_bytes // 1024} KiB: send a smaller one")
    if request.unread is not None:
        kind, message = _UNREAD.get(request.unread, ("BadRequest", "the header Content-Length is no number"))
        raise AdminError(request.unread, kind, message)
    if is_yaml:
        if len(request.body) > MOST_BYTES:
            raise _too_large(f"a body of YAML is {MOST_BYTES // 1024} KiB at most: send JSON, or a smaller one")
        return _object(_yaml(request.body), "YAML mapping: send one")
    try:
        content = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAdminRequestError(f"the body is no JSON: {error}; send a JSON object") from error
    return _object(content, "JSON object: send one, in braces")


def _yaml(body: bytes) -> object:
    try:
        text = body.decode()
        refuse_unsafe(text, _MOST_NESTED)
        return yaml.load(text, Loader=PlainLoader)  # noqa: S506  a safe loader
    except (yaml.YAMLError, ValueError) as error:
        raise BadAdminRequestError(f"the body is no YAML: {' '.join(str(error).split())}") from error


def _too_large(message: str) -> AdminError:
    return AdminError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "PayloadTooLarge", message)


def _object(content: object, wanted: str) -> Mapping[str, object]:
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadAdminRequestError(f"the body is no {wanted}")
    return content


def read_switch(request: HttpRequest, name: str) -> bool:
    """Return a boolean of the query, false where it is left out; raises AdminError."""
    values = request.parameters(name)
    if not values:
        return False
    if len(values) > 1 or values[0] not in _SWITCHES:
        raise BadAdminRequestError(f"{name} is {', '.join(values)!r:.60}: write true or false, once")
    return _SWITCHES[values[0]]
