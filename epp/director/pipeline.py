"""What one configuration makes of a request: parsers, producers, scheduler and hooks, swapped as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from epp.framework.errors import ModelMissingError, NoParserError
from epp.framework.plugins import EndpointObserver, Parser, PreRequest, Producer
from epp.framework.request import Headers, RequestBody
from epp.scheduling.scheduler import Scheduler


class ParserTable:
    """Parsers by path suffix: whole segments, the longest suffix first."""

    __slots__ = ("_by_suffix", "_longest")

    def __init__(self, parsers: Sequence[Parser[Any]]) -> None:
        self._by_suffix: dict[tuple[str, ...], tuple[str, Parser[Any]]] = {}
        for parser in parsers:
            for suffix in parser.suffixes:
                self._by_suffix.setdefault(tuple(suffix.split("/")), (suffix, parser))
        self._longest = max(map(len, self._by_suffix), default=0)

    def parse(self, path: str, headers: Headers, body: bytes) -> RequestBody:
        """Return what routing needs of a body; raises a BadRequestError."""
        segments = tuple(path.rstrip("/").split("/"))
        for length in range(min(self._longest, len(segments)), 0, -1):
            found = self._by_suffix.get(segments[-length:])
            if found is not None:
                suffix, parser = found
                parsed = parser.parse(suffix, headers, body)
                if not parsed.model:
                    raise ModelMissingError
                return parsed
        raise NoParserError(path)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Immutable; a request keeps the one it started with."""

    parsers: ParserTable
    scheduler: Scheduler
    producers: tuple[Producer[Any], ...] = ()
    """In an order in which each finds what it reads."""
    pre_request: tuple[PreRequest[Any], ...] = ()
    endpoint_observers: tuple[EndpointObserver[Any], ...] = field(default=())
