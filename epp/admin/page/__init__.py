# SPDX-License-Identifier: Apache-2.0
"""The page of the admin port: the pool, decisions and dry runs, in a browser. Its files are sent as they are here."""

from functools import partial
from http import HTTPStatus
from importlib import resources

from epp.admin.routes import Route
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer

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


def page_routes() -> tuple[Route, ...]:
    """Return the routes of the page, which holds no state: it asks for that, with the token, as programs do."""
    files = resources.files(__name__)
    return tuple(
        Route(
            "GET",
            path,
            partial(
                _send, Answer(HTTPStatus.OK, files.joinpath(name).read_bytes(), {**_HEADERS, "Content-Type": kind})
            ),
            needs_token=False,
        )
        for path, (name, kind) in _FILES.items()
    )


async def _send(answer: Answer, _request: HttpRequest, _rest: str) -> Answer:
    return answer
