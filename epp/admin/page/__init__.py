# SPDX-License-Identifier: Apache-2.0
"""The page of the admin port: the pool, decisions and simulated requests in a browser."""

from importlib import resources
from typing import Final

from aiohttp import web

from epp.runtime.http_server import response

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


PUBLIC_PATHS: Final = frozenset(_FILES)
"""Paths that need no token: the page asks for the token itself, and sends it with each request for data."""


def page_routes() -> tuple[web.RouteDef, ...]:
    """Return the routes of the page's files."""
    files = resources.files(__name__)

    def route(path: str, name: str, kind: str) -> web.RouteDef:
        content = files.joinpath(name).read_bytes()

        async def send(_request: web.Request) -> web.Response:
            return response(content, {**_HEADERS, "Content-Type": kind})

        return web.get(path, send)

    return tuple(route(path, *file) for path, file in _FILES.items())
