# SPDX-License-Identifier: Apache-2.0
"""Polls of one page of one endpoint on a persistent connection, and the classification of failures."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from epp.framework.datalayer import Contact, NotAskedError, PageError, UnreachableError
from epp.framework.endpoint import Endpoint, PagePlace
from epp.pool.collectors.page_limits import Limit, PageLimitError
from epp.pool.collectors.sources.connection import ConnectError, Connection, DisconnectedError, Outcome, connect
from epp.pool.collectors.sources.response_parser import IDENTITY, InvalidResponseError, PageBuffer
from epp.runtime.supervisor import NO_DESCRIPTOR

if TYPE_CHECKING:
    from epp.pool.collectors.sources.http import HttpSource

_REFUSALS = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})
_EXPIRED = 10
_OTHER_NAMES = frozenset({62, 64})  # of a host, of an IP address
"""Verification errors of OpenSSL."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request for a page, which errors describe."""

    endpoint: Endpoint
    url: str
    place: PagePlace
    source: str
    own_tls: bool
    """Whether the endpoint decides on TLS, not a parameter of the source."""
    as_gateway: bool = False
    """Whether certificates are verified as in the gateway with this picker."""
    request: bytes = b""
    tls: ssl.SSLContext | None = None

    def wrong_protocol(self, *, speaks_tls: bool) -> UnreachableError | PageError:
        """Return the error of a TLS server that got a request in plaintext, or of a plaintext server that got TLS."""
        if speaks_tls:
            scheme, contact, protocols = "https", Contact.SPEAKS_TLS, "TLS, but is polled in plaintext"
        else:
            scheme, contact, protocols = "http", Contact.SPEAKS_PLAINTEXT, "plaintext HTTP, but is polled over TLS"
        remedy = f"write scheme: {scheme} in the parameters of {self.source}"
        if self.own_tls:
            remedy = f"write {scheme}://{self.place}, or scheme: {scheme} in a file of endpoints"
        return self._tls_error(f"{self.place} speaks {protocols}", remedy, contact)

    def not_trusted(self, error: ssl.SSLCertVerificationError) -> UnreachableError | PageError:
        """Return the error of a server whose certificate is not trusted."""
        if error.verify_code == _EXPIRED:
            remedy = "renew the certificate"
        elif error.verify_code in _OTHER_NAMES:
            remedy = "write the endpoint with a host name or address that its certificate has"
        elif self.as_gateway:
            remedy = "name its authority with --endpoint-ca-file FILE, or give --endpoint-insecure-skip-verify"
        else:
            remedy = f"name its authority in caCertPath of {self.source}, or write insecureSkipVerify: true"
        problem = f"the certificate of {self.place} is not trusted: {error.verify_message}"
        return self._tls_error(problem, remedy, Contact.NOT_TRUSTED)

    def no_handshake(self, error: Exception) -> UnreachableError | PageError:
        """Return the error of a server with which TLS fails for any other reason."""
        problem = f"no secure connection to {self.place}: {error}"
        return self._tls_error(problem, "check the server's log and its TLS versions")

    def _tls_error(self, problem: str, remedy: str, contact: Contact | None = None) -> UnreachableError | PageError:
        """Return an error of the endpoint if it decides on TLS, otherwise of the page."""
        if self.own_tls:
            return UnreachableError(problem, refused=True, contact=contact, remedy=remedy)
        return PageError(problem, remedy=remedy)

    def timed_out(self, seconds: float) -> UnreachableError:
        remedy = "check the address, firewalls and the server's log"
        return UnreachableError(f"{self.url} did not answer within {seconds} s", refused=False, remedy=remedy)

    def lost(self, error: Exception) -> UnreachableError:
        """Return the error of a server that cannot be connected to."""
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ECONNREFUSED:
            problem = f"nothing listens at {self.place}: connection refused"
            return UnreachableError(problem, refused=True, remedy="start the server, or correct the address")
        if number in _REFUSALS or number is None:
            problem = f"{self.url}: the connection was closed without an answer"
            return UnreachableError(problem, refused=True, remedy="check the server's log")
        problem = f"{self.url}: {error}"
        return UnreachableError(problem, refused=False, remedy="check the address and the network")


class WantsTlsError(PageError):
    """The server requires TLS."""


class PageClient:
    """Requests one page repeatedly; the caller closes it when the endpoint has left."""

    __slots__ = (
        "_connection", "_done", "_page_buffer", "_source", "_task", "_timer", "attempt", "on_end", "seconds",
    )  # fmt: skip

    def __init__(self, source: HttpSource[Any], attempt: Attempt, page_buffer: PageBuffer | None = None) -> None:
        self.attempt = attempt
        self.seconds = 0.0
        """CPU time of the last page, without its last piece."""
        self._page_buffer = page_buffer
        self._source = source
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._done: Callable[[bytes | Exception], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Called when the server closes a persistent connection without a response."""

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.open

    def take_round_trip(self) -> float | None:
        """Return the seconds of the round trip of a new connection; None if they were returned before."""
        if self._connection is None:
            return None
        found, self._connection.round_trip = self._connection.round_trip, None
        return found

    def request(self, done: Callable[[bytes | Exception], None]) -> None:
        """Request the page; call `done` later, once, with it or an UnreachableError, PageError or NotAskedError."""
        self._done = done
        if self._connection is not None and self._connection.open:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._source.timeout_seconds, self._expire)
            self._connection.send(self.attempt.request, self._answered)
        else:
            self._start(None)

    async def page(self) -> bytes:
        """Request the page and return it; raises the errors that `request` reports. Close the client if cancelled."""
        outcome: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
        self.request(lambda result: None if outcome.done() else outcome.set_result(result))
        result = await outcome
        if isinstance(result, Exception):
            raise result
        return result

    def _expire(self) -> None:
        """Handle a response on a persistent connection that did not arrive in time."""
        error = self._late()
        self._disconnect()
        self._start(error)

    def close(self) -> asyncio.Task[None] | None:
        """Close the connection; an outstanding response is not reported. Return the cancelled task, if any."""
        self._done = None
        self._stop_timer()
        self._disconnect()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.seconds = connection.seconds
            connection.close()

    def _late(self) -> TimeoutError | PageError:
        """Return the error of a response that did not arrive in time, or only in part."""
        if self._connection is None or not self._connection.begun:
            return TimeoutError()
        text = f"{self.attempt.url}: the page was incomplete after {self._source.timeout_seconds} s"
        return PageLimitError(text, Limit.PAGE_SECONDS, remedy=self._source.remedy(Limit.PAGE_SECONDS))

    def _answered(self, outcome: Outcome) -> None:
        """Report the outcome on a persistent connection; if that was closed, try a new one first."""
        self._stop_timer()
        if isinstance(outcome, DisconnectedError):
            self._start(None)
            if self.on_end is not None:
                self.on_end()
            return
        self.seconds = 0.0 if self._connection is None else self._connection.seconds
        result = self._page_of(outcome)
        if isinstance(result, WantsTlsError):
            self._start(result)
        else:
            self._report(result)

    def _report(self, result: bytes | Exception) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def _start(self, error: Exception | None) -> None:
        """Continue in a task: classify the error, or without one request on a new connection."""
        self._task = asyncio.get_running_loop().create_task(self._resume(error), name=f"collect {self.attempt.url}")

    async def _resume(self, error: Exception | None) -> None:
        result: bytes | Exception
        try:
            result = await self._reconnect() if error is None else await self._source.classify(error, self.attempt)
        except Exception as unexpected:  # noqa: BLE001  reported, so that polls continue
            result = unexpected
        self._task = None
        self._report(result)

    async def _reconnect(self) -> bytes | Exception:
        """Request on a new connection; if file descriptors are scarce, on a short-lived one."""
        self._disconnect()
        try:
            connecting, keep = await self._source.socket_for(self.attempt.place.address)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                return NotAskedError(f"{self.attempt.url}: {error.strerror}")
            return await self._source.classify(ConnectError(error), self.attempt)
        self.seconds = 0.0
        is_kept = False
        result: bytes | Exception
        try:
            async with asyncio.timeout(self._source.timeout_seconds):
                connection = Connection(self._source.reading, self._source.limit_bytes, self._page_buffer)
                await connect(self.attempt.place, self.attempt.tls, connecting, connection)
                self._connection = connection
                if keep:
                    connection.on_idle_end = self.on_end
                outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                connection.send(self.attempt.request, lambda got: None if outcome.done() else outcome.set_result(got))
                answer = await outcome
            self.seconds = connection.seconds
            result = self._page_of(answer)
            is_kept = keep and isinstance(result, bytes)
        except TimeoutError:
            result = self._late()
        except Exception as error:  # noqa: BLE001  classified
            result = error
        finally:
            if not is_kept:
                self._disconnect()
        return result if isinstance(result, bytes) else await self._source.classify(result, self.attempt)

    def _page_of(self, outcome: Outcome) -> bytes | PageError | DisconnectedError:
        """Return the page, or the error of any other response."""
        url = self.attempt.url
        if isinstance(outcome, DisconnectedError):
            return outcome
        if isinstance(outcome, InvalidResponseError):
            if outcome.limit is None:
                return PageError(f"{url}: {outcome}")
            return PageLimitError(f"{url}: {outcome}", outcome.limit, remedy=self._source.remedy(outcome.limit))
        if outcome.status != HTTPStatus.OK:
            problem = f"{url} answered {outcome.status} {outcome.reason}".rstrip()
            wants_tls = outcome.status == HTTPStatus.BAD_REQUEST and b"https" in outcome.body.lower()
            return WantsTlsError(problem) if wants_tls else PageError(problem)
        if outcome.encoding not in IDENTITY:
            return PageError(
                f"{url} answered with Content-Encoding {outcome.encoding}, although identity was requested"
            )
        return outcome.body
