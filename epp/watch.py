"""Says when a file may have become another one, however it is replaced."""

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


async def occasions(file: Path) -> AsyncIterator[None]:
    """Yield whenever it is worth looking at the file again, for ever.

    That is when something happened in its directory (a rename over it, a swap of a symbolic link, as a Kubernetes
    ConfigMap does it), and every second besides: network file systems, and links whose target changes in place, tell
    nothing. The directory is watched, since a watch on the file would stay with the one that was replaced.
    """
    directory = Path(os.path.abspath(file)).parent  # noqa: ASYNC240, PTH100  asks nobody
    while True:
        try:
            changes = awatch(
                directory,
                watch_filter=None,
                debounce=_GATHER_MILLISECONDS,
                step=_STEP_MILLISECONDS,
                rust_timeout=_LOOK_ANYWAY_MILLISECONDS,
                yield_on_timeout=True,
                recursive=False,
            )
            async with aclosing(changes):
                async for _ in changes:
                    yield
        except OSError as error:
            _log.warning("directory cannot be watched, trying again", directory=str(directory), reason=str(error))
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        yield
