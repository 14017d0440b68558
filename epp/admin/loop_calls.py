# SPDX-License-Identifier: Apache-2.0
"""Calls from other threads into the event loop that owns the data."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import TypeVar

from epp.admin.answers import AdminError

_PATIENCE_SECONDS = 5.0

T = TypeVar("T")


class LoopCalls:
    """Calls functions on one event loop, for tasks of another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._loop = loop
        self._patience_seconds = patience_seconds

    async def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises.

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


def _unavailable() -> AdminError:
    return AdminError(
        HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable", "the picker is too busy to answer, or ends: nothing was changed"
    )
