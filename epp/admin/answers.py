# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of the admin port: bodies, JSON, errors, request counts, and calls into the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from epp.config import Assembly, ConfigState
from epp.framework.clock import Clock
from epp.framework.input_errors import ParameterError, read_struct
from epp.framework.messages import printable, quoted
from epp.framework.plain_yaml import load
from epp.framework.quotas import Quota
from epp.framework.snapshot import FAILED, SERVED, Snapshot
from epp.routing.director import Director
from epp.runtime.http_server import read_body, response
from epp.telemetry.endpoints import EndpointState

Counts: TypeAlias = Mapping[str, Counter[str]]
"""Number of requests by endpoint, and by tenant or by kind of count."""

_MOST_HELD = 10_000
"""Most requests of a process that are counted by endpoint and tenant."""
_MOST_NAME = 128


class HeldRequests(NamedTuple):
    assumed: Counts
    """Requests that no endpoint has answered yet."""
    by_tenant: Counts
    """Requests that are charged to the quotas of tenants."""
    unanswered: int
    """Number of all unanswered requests; may exceed the total of `assumed`."""
    silent: int = 0
    """Number of processes that did not answer in time; their requests are missing."""

    def with_others(self, others: Sequence["HeldRequests | None"]) -> "HeldRequests":
        """Add the requests of other processes; None for a process that did not answer."""
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


def endpoint_counts(snapshot: Snapshot, picks: Mapping[str, int]) -> Counts:
    """Return the picked, served and failed requests of this process for each endpoint of the pool, given its picks."""
    served, failed = snapshot.column(SERVED).tolist(), snapshot.column(FAILED).tolist()
    return {
        endpoint.id: Counter(picks=picks.get(endpoint.id, 0), served=served[slot], failed=failed[slot])
        for slot in snapshot.slots.tolist()
        if (endpoint := snapshot.endpoints.values[slot]) is not None
    }


class EndpointCounts:
    """Sums of endpoint counts over all processes; a process that has ended counts with its last answer."""

    def __init__(self) -> None:
        self._last: dict[Any, Counts] = {}
        """The last answer of each process."""
        self._ended: Counts = {}

    def with_others(self, own: Counts, answers: Mapping[Any, Counts | None]) -> Counts:
        """Add the counts of other processes to those of this one, for the endpoints that this one knows.

        A process that did not answer (None) counts with its last answer.
        """
        ended = [self._last.pop(process) for process in self._last.keys() - answers.keys()]
        self._ended = _of(own, _added([self._ended, *ended]))
        self._last.update((process, answer) for process, answer in answers.items() if answer is not None)
        return _of(own, _added([own, self._ended, *self._last.values()]))


def _of(endpoints: Iterable[str], counts: Counts) -> Counts:
    return {name: counts[name] for name in endpoints if name in counts}


_HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON: Final = "application/json"
_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}
_MOST_NESTED: Final = 100
_MOST_DIGITS: Final = 6
_MOST_TEXT: Final = 100
MOST_BYTES: Final = 64 * 1024
"""Default limit of a request body."""
_TIMEOUT_SECONDS: Final = 5.0

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
        """Machine-readable name of the error."""
        self.headers = headers or {}
        self.also = also or {}
        """Further members of the response."""

    @property
    def response(self) -> web.Response:
        return as_json({**self.also, "error": {"type": self.kind, "message": str(self)}}, self.status, self.headers)


class BadAdminRequestError(AdminError):
    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, "BadRequest", message)


class NotFoundError(AdminError):
    def __init__(self, message: str) -> None:
        super().__init__(HTTPStatus.NOT_FOUND, "NotFound", message)


def as_json(
    content: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> web.Response:
    return response(msgspec.json.encode(content) + b"\n", {**_HEADERS, **(headers or {})}, status)


async def read_object(
    request: web.Request, *, most_bytes: int = MOST_BYTES, or_yaml: bool = False
) -> Mapping[str, object]:
    """Return the body, a JSON object or, with `or_yaml`, a YAML mapping of at most 64 KiB; raises AdminError.

    The content type is required: pages of other sites cannot send it without the browser asking this server first.
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
            raise _too_large(f"the YAML body is larger than {MOST_BYTES // 1024} KiB: send JSON, or a smaller body")
        try:
            content = load(body.decode(), _MOST_NESTED).data
        except ValueError as error:
            raise BadAdminRequestError(f"the body cannot be read: {error}") from error
        return _object(content, "a YAML mapping: send one")
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAdminRequestError(f"the body is not valid JSON: {error}; send a JSON object") from error
    return _object(content, "a JSON object: send one, in braces")


def _too_large(message: str) -> AdminError:
    return AdminError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "PayloadTooLarge", message)


def _object(content: object, wanted: str) -> Mapping[str, object]:
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadAdminRequestError(f"the body is not {wanted}")
    return content


def read_as(kind: type[S], content: Mapping[str, object]) -> S:
    """Convert the body of a request to this type; raises AdminError."""
    try:
        return read_struct(kind, content)
    except ParameterError as error:
        place = ".".join(map(str, error.path))
        raise BadAdminRequestError(f"{place}: {error}" if place else str(error)) from error


def read_one(request: web.Request, name: str) -> str:
    """Return a query parameter, empty by default; raises AdminError if it is repeated."""
    values = request.query.getall(name, ())
    if len(values) > 1:
        raise BadAdminRequestError(f"{name} is repeated {len(values)} times: write it once")
    return values[0] if values else ""


def read_number(request: web.Request, name: str, otherwise: int, *, least: int, most: int) -> int:
    """Return a number in the query; raises AdminError."""
    text = read_one(request, name)
    if not text:
        return otherwise
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    if not is_number or not least <= int(text) <= most:
        raise BadAdminRequestError(f"{name} is {quoted(text)}: write a number from {least} to {most}")
    return int(text)


def read_text(request: web.Request, name: str) -> str:
    """Return a query parameter, the first if it is repeated, empty by default; raises AdminError for a long one."""
    text = request.query.get(name, "")
    if len(text) > _MOST_TEXT:
        raise BadAdminRequestError(f"{name} has {len(text)} characters: write at most {_MOST_TEXT}")
    return text


def read_switch(request: web.Request, name: str) -> bool:
    """Return a boolean in the query, false by default; raises AdminError."""
    values = request.query.getall(name, ("false",))
    if len(values) > 1 or values[0] not in _SWITCHES:
        raise BadAdminRequestError(f"{name} is {', '.join(values)!r:.60}: write true or false, once")
    return _SWITCHES[values[0]]


class LoopCalls:
    """Calls functions on one event loop, for tasks of another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._loop = loop
        self._timeout_seconds = timeout_seconds

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception.

        Raises AdminError if the loop does not start `work` in time; `work` is then never called.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  raised in the caller
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError as error:  # closed
            raise _unavailable() from error
        waiting = asyncio.wrap_future(future)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.shield(waiting)
        except TimeoutError:
            if future.cancel():
                raise _unavailable() from None
            return await waiting  # it is already running and ends soon

    async def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine of `work` on the loop; return its result, or raise its exception.

        Raises AdminError if it does not end in time; it is then cancelled.
        """
        coroutine = work()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # closed
            coroutine.close()
            raise _unavailable() from error
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise _unavailable() from None


def _unavailable() -> AdminError:
    text = "the picker is too busy or is shutting down: nothing was changed"
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerView:
    """Access to the picker; everything except `loop` and `build` must be used on its event loop."""

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
    counts: Callable[[], Coroutine[Any, Any, Counts]]
    """Picked, served and failed requests of each endpoint."""
    source_of: Callable[[str], str]
    """Returns the name of the source of an endpoint, given its `namespace/name`; empty with a single source."""
    held: Callable[[], Coroutine[Any, Any, HeldRequests]]
    """Requests in flight, by endpoint and tenant."""
    tenants: Callable[[], Iterable[str]]
    """Tenants whose quotas are listed by name in configuration or objects."""
    share_quota: Callable[[str, Quota | None], None]
    """Sends a quota that was set for a tenant to other processes; None if it was removed."""
    build: Callable[[str], Assembly]
    """Assembles a configuration from its text, without effect; called in a thread, raises ConfigurationError."""
    complete: Callable[[], Coroutine[Any, Any, None]]
    """Applies the prefix index entries of workers, before a request is simulated."""
