# SPDX-License-Identifier: Apache-2.0
"""Errors of access to an API server, and of requests to it."""

import os
import ssl
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from epp.framework.errors import ConfigurationError

_REASON_LENGTH = 500
_KNOWN = {
    "ConnectTimeout": "no connection in time",
    "LocalProtocolError": "the token has characters that no token has",
    "PoolTimeout": "too many requests are under way",
    "ReadTimeout": "no answer in time",
    "WriteTimeout": "the request could not be sent in time",
}
"""Exceptions of the HTTP client whose text does not say what is wrong, or says too much."""
_BROKEN = "the connection broke"


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


def reason_of(error: BaseException) -> str:
    """Return why something failed, on one line and without secrets."""
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            said = each.verify_message.rstrip(".")
            return f"its certificate is not accepted: {said}; correct the certificate authority or the address"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    kind = type(error).__name__
    if kind in _KNOWN:
        return _KNOWN[kind]
    texts = [text for each in chain if (text := " ".join(str(each).split()))]
    if kind == "ConnectError":  # its own text says nothing of the reason
        texts = [_words(each) for each in chain if isinstance(each, OSError) and each.strerror][-1:] or texts
    return texts[0][:_REASON_LENGTH] if texts else (_BROKEN if len(chain) > 1 else kind)


def refuse_access(place: object, problem: str) -> NoReturn:
    """Raise the ConfigurationError of a file, directory or server that gives no access; `problem` ends in a remedy."""
    raise ConfigurationError(f"no access to Kubernetes: {place}: {problem}")


def _words(error: OSError) -> str:
    """Return what the system calls an error; those of name resolution have negative numbers and words of their own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; of a group, the first one."""
    following: BaseException | None = error
    while following is not None:
        yield following
        if isinstance(following, BaseExceptionGroup):
            following = following.exceptions[0]
        else:
            following = following.__cause__ or following.__context__
