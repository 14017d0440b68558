# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of the admin port: bodies, JSON, errors, counts of requests, and calls into the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import yaml
from aiohttp import web

from epp.config import Assembly, ConfigState
from epp.framework.clock import Clock
from epp.framework.input_errors import ParameterError, read_struct
from epp.framework.messages import printable, quoted
from epp.framework.quotas import Quota
from epp.framework.snapshot import Snapshot
from epp.routing.director import Director
from epp.runtime.http_server import read_body, response
from epp.runtime.plain_yaml import PlainLoader, refuse_unsafe
from epp.telemetry.endpoints import EndpointState

Counts: TypeAlias = Mapping[str, Counter[str]]
"""Number of requests by endpoint and tenant."""

_MOST_HELD = 10_000
"""Requests of a process that are looked through."""
_MOST_NAME = 128


class HeldRequests(NamedTuple):
    assumed: Counts
    """Requests that no endpoint has answered yet."""
    by_tenant: Counts
    """Requests that are charged to the quotas of tenants."""
    unanswered: int
    """Number of all unanswered requests; `assumed` is cut off if there are very many."""
    silent: int = 0
    """Processes that did not answer in time: their requests are missing."""

    def with_others(self, others: Sequence["HeldRequests | None"]) -> "HeldRequests":
        """Return these and those of other processes, None for one that did not answer."""
        parts = (self, *(each for each in others if each is not None))
        return HeldRequests(
            _added(each.assumed for each in parts),
            _added(each.by_tenant for each in parts),
            sum(each.unanswered for each in parts),
            1 + len(others) - len(parts),
        )


def held_requests(director: Director) -> HeldRequests:
    assumed = islice(director.reservations, _MOST_HELD)
    charged = islice(director.quotas.reservations(), _MOST_HELD)
    return HeldRequests(
        _counted((routing.result.targets[0].id, routing.request.fairness_id) for routing in assumed),
        _counted((place.endpoint, each.tenant) for each in charged for place in each.places),
        len(director.reservations),
    )


def _counted(pairs: Iterable[tuple[str, str]]) -> Counts:
    return _added({endpoint: Counter((printable(tenant, _MOST_NAME),))} for endpoint, tenant in pairs)


def _added(parts: Iterable[Counts]) -> Counts:
    found: dict[str, Counter[str]] = {}
    for endpoint, counts in (pair for part in parts for pair in part.items()):
        found.setdefault(endpoint, Counter()).update(counts)
    return found


_HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON: Final = "application/json"
_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}
_MOST_NESTED: Final = 100
_MOST_DIGITS: Final = 6
_MOST_TEXT: Final = 100
MOST_BYTES: Final = 64 * 1024
"""Default limit of a request body."""
_PATIENCE_SECONDS: Final = 5.0

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class AdminError(Exception):
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
        """Name of the error, for programs."""
        self.headers = headers or {}
        self.also = also or {}
        """Further members of the response."""

    @property
    def response(self) -> web.Response:
        return as_json({**self.also, "error": {"type": self.kind, "message": str(self)}}, self.status, self.headers)


class BadAdminRequestError(AdminError):
    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def as_json(
    content: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    return response(msgspec.json.encode(content) + b"\n", {**_HEADERS, **(headers or {})}, status)


async def read_object(
    request: web.Request, *, most_bytes: int = MOST_BYTES, or_yaml: bool = False
) -> Mapping[str, object]:
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
    try:
        body = await read_body(request, most_bytes)
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(f"the body is larger than {most_bytes // 1024} KiB: send a smaller one") from None
    if is_yaml:
        if len(body) > MOST_BYTES:
            raise _too_large(f"a body of YAML is {MOST_BYTES // 1024} KiB at most: send JSON, or a smaller one")
        return _object(_yaml(body), "YAML mapping: send one")
    try:
        content = msgspec.json.decode(body)
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


def read_as(kind: type[S], content: Mapping[str, object]) -> S:
    """Return the body of a request as this type; raises AdminError."""
    try:
        return read_struct(kind, content)
    except ParameterError as error:
        place = ".".join(map(str, error.path))
        raise BadAdminRequestError(f"{place}: {error}" if place else str(error)) from error


def read_one(request: web.Request, name: str) -> str:
    """Return a parameter of the query, empty by default; raises AdminError if it is repeated."""
    values = request.query.getall(name, ())
    if len(values) > 1:
        raise BadAdminRequestError(f"{name} is there {len(values)} times: write it once")
    return values[0] if values else ""


def read_number(request: web.Request, name: str, otherwise: int, *, least: int, most: int) -> int:
    """Return a number of the query; raises AdminError."""
    text = read_one(request, name)
    if not text:
        return otherwise
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    if not is_number or not least <= int(text) <= most:
        raise BadAdminRequestError(f"{name} is {quoted(text)}: write a number from {least} to {most}")
    return int(text)


def read_text(request: web.Request, name: str) -> str:
    """Return a text of the query, empty without one; raises AdminError for a long one, and takes the first of two."""
    text = request.query.get(name, "")
    if len(text) > _MOST_TEXT:
        raise BadAdminRequestError(f"{name} has {len(text)} characters: write {_MOST_TEXT} at most")
    return text


def read_switch(request: web.Request, name: str) -> bool:
    """Return a boolean of the query, false by default; raises AdminError."""
    values = request.query.getall(name, ("false",))
    if len(values) > 1 or values[0] not in _SWITCHES:
        raise BadAdminRequestError(f"{name} is {', '.join(values)!r:.60}: write true or false, once")
    return _SWITCHES[values[0]]


class LoopCalls:
    """Calls functions on one event loop, for tasks of another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._loop = loop
        self._patience_seconds = patience_seconds

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception.

        Raises AdminError where the loop does not come to it in time; `work` is then not called any more.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  the caller is told
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError as error:  # closed
            raise _unavailable() from error
        waiting = asyncio.wrap_future(future)
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await asyncio.shield(waiting)
        except TimeoutError:
            if future.cancel():
                raise _unavailable() from None
            return await waiting  # it runs already, and takes no time

    async def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine that `work` makes and the loop runs, or raise its exception.

        Raises AdminError where it does not end in time; it is then cancelled.
        """
        coroutine = work()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # closed
            coroutine.close()
            raise _unavailable() from error
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise _unavailable() from None


def _unavailable() -> AdminError:
    return AdminError(
        HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable", "the picker is too busy to answer, or ends: nothing was changed"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerView:
    """The picker that is shown; all but `loop` and `build` is for its event loop."""

    loop: LoopCalls
    pool: str
    """Name of the pool."""
    director: Director
    snapshot: Callable[[], Snapshot]
    clock: Clock
    assembly: Callable[[], Assembly]
    """The configuration in effect."""
    config: Callable[[], ConfigState]
    """State of the configuration file."""
    states: Callable[[], Sequence[EndpointState]]
    """State of each endpoint according to polls."""
    picks: Callable[[], Mapping[str, int]]
    """Number of picks of each endpoint, by `namespace/name`."""
    source_of: Callable[[str], str]
    """Returns the name of the source of an endpoint, given its `namespace/name`; empty if there are not several."""
    held: Callable[[], Coroutine[Any, Any, HeldRequests]]
    """The requests that endpoints and tenants hold."""
    tenants: Callable[[], Iterable[str]]
    """Tenants whose quotas are listed by name in configuration or objects."""
    tell_quota: Callable[[str, Quota | None], None]
    """Tells other processes of a quota that was set for a tenant, or taken back."""
    build: Callable[[str], Assembly]
    """Returns what another configuration would be, from its text; called in a thread, raises ConfigurationError."""
    complete: Callable[[], Coroutine[Any, Any, None]]
    """Applies the placements of prompts by workers, before a request is simulated."""
