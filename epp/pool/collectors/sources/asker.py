# SPDX-License-Identifier: Apache-2.0
"""Polls of one page of one endpoint, on a connection that is kept between them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from epp.framework.datalayer import NotAskedError, PageError
from epp.pool.collectors.http.answers import IDENTITY, Gathering, UnreadableAnswerError
from epp.pool.collectors.http.connection import ConnectError, Connection, DisconnectedError, Outcome, Target
from epp.pool.collectors.http.deadlines import Deadlines
from epp.pool.collectors.limits import Limit, PageLimitError
from epp.pool.collectors.sources.failures import Attempt
from epp.runtime.process import NO_DESCRIPTOR


class WantsTlsError(PageError):
    """The answer says that it should have been asked over TLS."""


class Link(Protocol):
    """What an asker has of its source."""

    deadlines: Deadlines

    @abstractmethod
    async def open_connection(self, target: Target, gathering: Gathering | None, *, keep: bool) -> Connection:
        """Return a connection; raises ConnectError or ssl.SSLError."""

    @abstractmethod
    def remedy(self, limit: Limit) -> str:
        """Return what to do about a page beyond a limit."""

    @abstractmethod
    async def wait_for_descriptor(self) -> None:
        """Wait for a free file descriptor."""

    @abstractmethod
    async def judged(self, error: Exception, attempt: Attempt) -> Exception:
        """Return what a failure means, as UnreachableError or PageError."""


class Asker:
    """Asks for one page again and again; closed once the endpoint has left."""

    __slots__ = (
        "_connection", "_done", "_gathering", "_link", "_task", "attempt", "on_end", "seconds", "target",
    )  # fmt: skip

    def __init__(self, link: Link, target: Target, attempt: Attempt, gathering: Gathering | None = None) -> None:
        self.target = target
        self.attempt = attempt
        self.seconds = 0.0
        """CPU time for the last page, but for its last piece."""
        self._gathering = gathering
        self._link = link
        self._connection: Connection | None = None
        self._done: Callable[[bytes | Exception], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Called when the server closes a kept connection, instead of an answer or while none is due."""

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return self._done is not None

    @property
    def connected(self) -> bool:
        """Whether there is a connection that can be asked."""
        return self._connection is not None and self._connection.open

    def ask(self, done: Callable[[bytes | Exception], None]) -> None:
        """Ask, and call `done` once with the page, or UnreachableError, PageError or NotAskedError; never at once."""
        self._done = done
        connection = self._connection
        if connection is not None and connection.open:
            self._link.deadlines.begin(self)
            connection.ask(self.target.request, self._answered)
        else:
            self._start(None)

    async def page(self) -> bytes:
        """Ask, and return the page; raises as `ask` reports."""
        outcome: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
        self.ask(lambda result: None if outcome.done() else outcome.set_result(result))
        try:
            result = await outcome
        except asyncio.CancelledError:
            self.close()
            raise
        if isinstance(result, Exception):
            raise result
        return result

    def expire(self) -> None:
        """Give up an answer that did not come in time on a connection that was kept."""
        error = self._late()
        self._disconnect()
        self._start(error)

    def close(self) -> asyncio.Task[None] | None:
        """Close the connection; an answer that is due is not reported. Return the task that is about to end, if any."""
        self._done = None
        self._link.deadlines.end(self)
        self._disconnect()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.seconds = connection.seconds
            connection.close()

    def _late(self) -> TimeoutError | PageError:
        """Return the error of an answer that did not come in time, or not all of it."""
        if self._connection is None or not self._connection.begun:
            return TimeoutError()
        text = f"{self.attempt.url}: the page was not all there after {self._link.deadlines.seconds} s"
        return PageLimitError(text, Limit.PAGE_SECONDS, remedy=self._link.remedy(Limit.PAGE_SECONDS))

    def _answered(self, outcome: Outcome) -> None:
        """Report the outcome on a connection that was kept; one that was just closed is no failure yet."""
        self._link.deadlines.end(self)
        if isinstance(outcome, DisconnectedError):
            self._start(None)
            if self.on_end is not None:
                self.on_end()
            return
        self.seconds = 0.0 if self._connection is None else self._connection.seconds
        try:
            page = page_of(outcome, self.attempt.url, self._link.remedy)
        except WantsTlsError as error:
            self._start(error)
        except PageError as error:
            self._report(error)
        else:
            self._report(page)

    def _report(self, result: bytes | Exception) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def _start(self, error: Exception | None) -> None:
        """Go on in a task: judge the error, or without one ask on a new connection."""
        self._task = asyncio.get_running_loop().create_task(self._resume(error), name=f"collect {self.attempt.url}")

    async def _resume(self, error: Exception | None) -> None:
        result: bytes | Exception
        try:
            result = await self._judged(error) if error is not None else await self._ask_anew()
        except Exception as unforeseen:  # noqa: BLE001  reported as well, so that the endpoint is asked again
            result = unforeseen
        self._task = None
        self._report(result)

    async def _ask_anew(self) -> bytes | Exception:
        """Ask on a new connection; if file descriptors are scarce, on a short-lived one."""
        try:
            return await self._asked(keep=True)
        except NotAskedError:
            await self._link.wait_for_descriptor()
        except Exception as error:  # noqa: BLE001  of whatever kind, it is judged
            return await self._judged(error)
        try:
            return await self._asked(keep=False)
        except Exception as error:  # noqa: BLE001  the same
            return await self._judged(error)

    async def _asked(self, *, keep: bool) -> bytes:
        self._disconnect()
        self.seconds = 0.0
        try:
            async with asyncio.timeout(self._link.deadlines.seconds):
                try:
                    connection = await self._link.open_connection(self.target, self._gathering, keep=keep)
                except ConnectError as error:
                    if error.error.errno in NO_DESCRIPTOR:
                        raise NotAskedError(f"{self.attempt.url}: {error.error.strerror}") from None
                    raise
                self._connection = connection
                if keep:
                    connection.on_idle_end = self.on_end
                outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                connection.ask(self.target.request, lambda got: None if outcome.done() else outcome.set_result(got))
                answer = await outcome
            self.seconds = connection.seconds
            return page_of(answer, self.attempt.url, self._link.remedy)
        except TimeoutError:
            late = self._late()
            self._disconnect()
            raise late from None
        except BaseException:
            self._disconnect()
            raise
        finally:
            if not keep:
                self._disconnect()

    async def _judged(self, error: Exception) -> Exception:
        if isinstance(error, NotAskedError) or (isinstance(error, PageError) and not isinstance(error, WantsTlsError)):
            return error
        return await self._link.judged(error, self.attempt)


def page_of(outcome: Outcome, url: str, remedy: Callable[[Limit], str]) -> bytes:
    """Return the page; raises PageError for any other answer, and DisconnectedError for none."""
    if isinstance(outcome, UnreadableAnswerError):
        if outcome.limit is not None:
            raise PageLimitError(f"{url}: {outcome}", outcome.limit, remedy=remedy(outcome.limit))
        raise PageError(f"{url}: {outcome}")
    if isinstance(outcome, DisconnectedError):
        raise outcome
    if outcome.status != HTTPStatus.OK:
        problem = f"{url} answered {outcome.status} {outcome.reason}".rstrip()
        if outcome.status == HTTPStatus.BAD_REQUEST and b"https" in outcome.body.lower():
            raise WantsTlsError(problem)
        raise PageError(problem)
    if outcome.encoding not in IDENTITY:
        raise PageError(f"{url} answered with Content-Encoding {outcome.encoding}, although identity was requested")
    return outcome.body
