# SPDX-License-Identifier: Apache-2.0
"""Changes of files, by whatever means they are replaced, and reloads that an operator asks for."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import structlog

_DEBOUNCE_MILLISECONDS = 100
_STEP_MILLISECONDS = 100
"""Time between two looks of a thread, each of which takes the interpreter from the event loop for a moment."""
_POLL_MILLISECONDS = 1000
_RETRY_SECONDS = 5.0

_log = structlog.get_logger()


class Reloads:
    """Requests to read files again, as with SIGHUP. Of use in one event loop; `count` may be read in any thread."""

    def __init__(self) -> None:
        self.count = 0
        """Requests so far."""
        self._waiting: set[asyncio.Event] = set()

    def ask(self) -> None:
        """Let everything that follows files read them again."""
        self.count += 1
        _log.info("reload of certificates and configuration asked for", count=self.count)
        for event in self._waiting:
            event.set()

    async def each(self) -> AsyncIterator[None]:
        """Yield after each request, endlessly; several at a time count once."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while True:
                await event.wait()
                event.clear()
                yield
        finally:
            self._waiting.discard(event)


RELOADS = Reloads()


async def changes(*paths: Path) -> AsyncIterator[None]:
    """Yield whenever the files and directories may have changed, endlessly.

    That is after an event in a directory, or in the directory of a file (a rename over it, or a swapped symbolic link,
    as in a Kubernetes ConfigMap), and every second: network file systems, and links whose target changes in place,
    raise no events. Directories are watched, since a watch on a file would stay with the replaced one.
    """
    from watchfiles import awatch  # noqa: PLC0415  not for a process that follows no file

    # Local and short; and abspath, unlike resolve, does not follow a link away from the directory that changes.
    directories = sorted({path if path.is_dir() else Path(os.path.abspath(path)).parent for path in paths})  # noqa: ASYNC240, PTH100
    while True:
        try:
            events = awatch(
                *directories,
                watch_filter=None,
                debounce=_DEBOUNCE_MILLISECONDS,
                step=_STEP_MILLISECONDS,
                rust_timeout=_POLL_MILLISECONDS,
                yield_on_timeout=True,
                recursive=False,
            )
            async with aclosing(events):
                async for _ in events:
                    yield
        except OSError as error:
            _log.warning("file watch failed, retrying", directories=list(map(str, directories)), reason=str(error))
        await asyncio.sleep(_RETRY_SECONDS)
        yield
