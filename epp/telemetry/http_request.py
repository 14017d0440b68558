# SPDX-License-Identifier: Apache-2.0
"""HTTP/1 requests, and heads of responses, as bytes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.([01])")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_MOST_FIELDS = 100
_MOST_PARAMETERS = 1000
_LENGTH_DIGITS = 15
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BadHeadError(Exception):
    """The bytes are no head of an HTTP/1 request."""


class UnreadableBodyError(Exception):
    """A body is too large, or its size is not known."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: its head, and its body where the server reads bodies."""

    method: str
    path: str
    """Without the query, percent-decoded."""
    query: str
    headers: Mapping[str, str]
    """By name in lower case; of several values the first."""
    minor_version: int
    """Of HTTP/1: that of the response too."""
    keep_alive: bool
    """Whether the client may send another request on the connection."""
    body: bytes = b""
    unread: HTTPStatus | None = None
    """Why its body was not read."""
    peer: str = ""
    """IP address of the client."""

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    def body_bytes(self, most: int) -> int:
        """Return the size of the body; raises UnreadableBodyError with the status for one that is not to be read."""
        if "transfer-encoding" in self.headers:
            raise UnreadableBodyError(HTTPStatus.LENGTH_REQUIRED)
        text = self.headers.get("content-length", "0")
        if not (text.isascii() and text.isdecimal()):
            raise UnreadableBodyError(HTTPStatus.BAD_REQUEST)
        if len(text) > _LENGTH_DIGITS or int(text) > most:
            raise UnreadableBodyError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return int(text)

    def parameters(self, name: str) -> Sequence[str]:
        """Return all values of a parameter of the query; none of a query of more than a thousand."""
        try:
            pairs = parse_qsl(self.query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
        except ValueError:
            return ()
        return [value for key, value in pairs if key == name]


def read_head(head: bytes) -> HttpRequest:
    """Return the request that a head, with its empty line, begins; raises BadHeadError."""
    first, *lines = head.decode("latin-1").lstrip("\r\n").removesuffix("\r\n\r\n").split("\r\n")
    found = _LINE.fullmatch(first)
    if found is None or len(lines) > _MOST_FIELDS:
        raise BadHeadError
    method, target, minor = found.groups()
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadHeadError
        headers.setdefault(field[1].lower(), field[2])
    try:
        parts = urlsplit(target)
    except ValueError as error:  # such as half an IPv6 address
        raise BadHeadError from error
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    keep_alive = "close" not in options and (minor == "1" or "keep-alive" in options)
    return HttpRequest(method, unquote(parts.path), parts.query, headers, int(minor), keep_alive)


def write_head(
    minor_version: int, status: HTTPStatus, headers: Mapping[str, str], length: int, *, keep_alive: bool
) -> bytes:
    """Return the head of a response with a body of this length."""
    fields = {
        **headers,
        "Content-Length": str(length),
        "Date": formatdate(usegmt=True),
        "Connection": "keep-alive" if keep_alive else "close",
    }
    lines = [
        f"HTTP/1.{minor_version} {status.value} {status.phrase}",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
