# SPDX-License-Identifier: Apache-2.0
"""JSON responses of the admin port: results, and errors with type, message and remedy."""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from epp.telemetry.http_thread import Answer

_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class AdminError(Exception):
    """A request is not answered as its client wishes."""

    def __init__(
        self,
        status: HTTPStatus,
        kind: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        also: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """What programs go by."""
        self.headers = headers or {}
        self.also = also or {}
        """More of the answer, beside the error."""

    @property
    def answer(self) -> Answer:
        """The answer."""
        return as_json({**self.also, "error": {"type": self.kind, "message": str(self)}}, self.status, self.headers)


class BadAdminRequestError(AdminError):
    """The request itself is at fault."""

    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def as_json(content: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Answer:
    """Return the answer with this content."""
    return Answer(status, msgspec.json.encode(content) + b"\n", {**_HEADERS, **(headers or {})})
