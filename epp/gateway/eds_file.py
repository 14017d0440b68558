"""The pool as a file that Envoy follows: written when the pool changes, beside the requests and never in their way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from epp.datastore import Datastore
from epp.framework import Endpoint
from epp.gateway.errors import SettingsError
from epp.gateway.settings import MODEL_SERVERS

__all__ = ["EdsFile", "discovery_response"]

_RETRY_SECONDS = 1.0

logger = structlog.get_logger()


def discovery_response(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the file's text: a DiscoveryResponse in protobuf's JSON mapping, one endpoint a line."""
    lines = [
        msgspec.json.encode(
            {"endpoint": {"address": {"socket_address": {"address": each.address, "port_value": each.port}}}}
        )
        for each in endpoints
    ]
    listed = b",\n".join(b"      " + line for line in lines)
    return b"""{"resources": [
  {
    "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    "cluster_name": "%b",
    "endpoints": [{"lb_endpoints": [
%b
    ]}]
  }
]}
""" % (MODEL_SERVERS.encode(), listed)


class EdsFile:
    """Keeps the file at `path` equal to the pool for as long as the `async with` block lasts.

    The first version is there when the block begins; Envoy refuses to start without it. The file stays. Each version
    replaces the last one as a whole, so that Envoy never reads half of one; when it cannot be written, the last one
    stays in force and it is tried again every second. Entering raises `SettingsError` if `path` cannot be written.
    """

    def __init__(self, path: Path, store: Datastore) -> None:
        self._path = path
        self._store = store
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._store.subscribe(lambda _change: self._changed.set())
        try:
            await self._write()
        except OSError as error:
            raise SettingsError(
                f"eds_file: cannot write {str(self._path)!r}: {error.strerror}; choose a directory that this process "
                "may write to"
            ) from error
        self._task = asyncio.create_task(self._follow(), name="EDS file")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            try:
                await self._write()
            except OSError as error:
                logger.error("eds_file_not_written", path=str(self._path), error=error.strerror)  # noqa: TRY400  the traceback says nothing
                self._changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self) -> None:
        self._changed.clear()
        text = discovery_response(self._store.endpoints)
        self._writing = asyncio.ensure_future(asyncio.to_thread(_replace, self._path, text))
        await asyncio.shield(self._writing)  # a thread cannot be cancelled; the end of the block waits for it


def _replace(path: Path, text: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(text)
    fresh.replace(path)
