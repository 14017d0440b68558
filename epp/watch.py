"""Watches files for changes, however they are replaced."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import structlog
from watchfiles import awatch

_GATHER_MILLISECONDS = 100
_STEP_MILLISECONDS = 20
_LOOK_ANYWAY_MILLISECONDS = 1000
_LOOK_AGAIN_SECONDS = 5.0

_log = structlog.get_logger()


async def changes(*paths: Path) -> AsyncIterator[None]:
    """Yield whenever the files and directories may have changed, for ever.

    That is after an event in a directory or in that of a file (a rename over it, a swap of a symbolic link, as
    a Kubernetes ConfigMap does it), and every second besides: network file systems, and links whose target changes in
    place, tell nothing. Directories are watched, since a watch on a file would stay with the one that was replaced.
    """
    directories = sorted({path if path.is_dir() else Path(os.path.abspath(path)).parent for path in paths})  # noqa: ASYNC240, PTH100
    while True:
        try:
            events = awatch(
                *directories,
                watch_filter=None,
                debounce=_GATHER_MILLISECONDS,
                step=_STEP_MILLISECONDS,
                rust_timeout=_LOOK_ANYWAY_MILLISECONDS,
                yield_on_timeout=True,
                recursive=False,
            )
            async with aclosing(events):
                async for _ in events:
                    yield
        except OSError as error:
            _log.warning("cannot be watched, trying again", directories=list(map(str, directories)), reason=str(error))
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        yield
