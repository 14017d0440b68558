# SPDX-License-Identifier: Apache-2.0
"""Errors of requests to an API server."""

import msgspec


class ApiUnreachableError(Exception):
    """The API server did not answer: no connection, TLS refused, time ran out, or no valid credentials."""


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, reason: str = "", message: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(message or reason or f"HTTP status {status}")
        self.status = status
        """The HTTP status, or the code of the Status object in a watch."""
        self.reason = reason
        """One word of Kubernetes, such as Forbidden or Expired."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait; 0 where it does not say."""


class _Status(msgspec.Struct, frozen=True):
    """A Status object, as far as it is read."""

    code: int = 0
    reason: str = ""
    message: str = ""


def error_of(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Return the error in the body of an answer, or of an event; a body that is no Status says nothing more."""
    try:
        found = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _Status()
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiError(found.code or status, found.reason, found.message[:1000], retry_after=seconds)
