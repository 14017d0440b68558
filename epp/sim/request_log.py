"""What clients sent: the last requests, with the fingerprint of their bodies and the headers that arrived."""

import hashlib
from collections import OrderedDict
from itertools import count

import msgspec

__all__ = ["RequestLog", "RequestRecord"]


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a completion path.

    Attributes:
        id: the id of the answer; None when the request was refused before it got one.
        path: the path with its query, as it arrived.
        model: the model asked for; None when the body could not be read.
        prompt_tokens: None when the request was refused before they were counted.
        cached_tokens: None until the first output token.
        finish_reason: `stop`, `length` or `abort` (also for a client that went away); None while it is in flight
            and when it was refused.
        body_bytes: length of the body.
        body_sha256: hexadecimal digest of the body.
        headers: (lower-case name, value) in order of arrival, duplicates kept.
    """

    id: str | None = None
    path: str
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    body_bytes: int
    body_sha256: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def arrived(cls, path: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> "RequestRecord":
        """Record what is known before the body is understood."""
        return cls(
            path=path,
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
            headers=tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers),
        )


class RequestLog:
    """The last `limit` records, oldest first; a record can be replaced as more becomes known."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._numbers = count()
        self._records: OrderedDict[int, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> int:
        """Keep a record and return its number, unique in this log."""
        number = next(self._numbers)
        self._records[number] = record
        if len(self._records) > self._limit:
            self._records.popitem(last=False)
        return number

    def replace(self, number: int, record: RequestRecord) -> None:
        """Put a fuller record in place of an older one; nothing happens when that one has been dropped."""
        if number in self._records:
            self._records[number] = record

    def records(self) -> list[RequestRecord]:
        """All records kept, in order of arrival."""
        return list(self._records.values())
