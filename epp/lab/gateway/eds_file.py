# SPDX-License-Identifier: Apache-2.0
"""The EDS file: the pool as a file that Envoy watches, written in the background when the pool changes."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from epp.framework import Endpoint
from epp.lab.gateway.errors import SettingsError
from epp.lab.gateway.settings import HTTPS, MODEL_SERVERS
from epp.routing.datastore import Datastore

_RETRY_SECONDS = 1.0

_log = structlog.get_logger()


def discovery_response(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the file's text: a DiscoveryResponse in protobuf's JSON mapping, one endpoint a line."""
    lines = [msgspec.json.encode(_host(each)) for each in endpoints]
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


def _host(endpoint: Endpoint) -> dict[str, object]:
    address = {"socket_address": {"address": endpoint.address, "port_value": endpoint.port}}
    if not endpoint.tls:
        return {"endpoint": {"address": address}}
    # Envoy sends the host name in the handshake and verifies it in the certificate. For an IP address, the mark selects
    # the settings that verify this address.
    hostname = endpoint.host.rstrip(".")  # names in handshakes have no trailing dot
    host: dict[str, object] = {"address": address, **({"hostname": hostname} if hostname else {})}
    mark = HTTPS if endpoint.host else endpoint.address
    return {"endpoint": host, "metadata": {"filter_metadata": {"envoy.transport_socket_match": {HTTPS: mark}}}}


class EdsFile:
    """Keeps the file at `path` equal to the pool while the `async with` block runs; the file remains afterwards.

    The first version exists when the block begins, because Envoy does not start without it. New versions replace the
    file atomically; a failed write is retried every second. Entering the block raises `SettingsError` if `path` cannot
    be written.
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
                "eds_file", f"cannot write {str(self._path)!r}: {error.strerror}; make room, or name another directory"
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
                _log.warning("EDS file not written, retrying", path=str(self._path), error=error.strerror)
                self._changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self) -> None:
        self._changed.clear()
        text = discovery_response(self._store.endpoints)
        self._writing = asyncio.ensure_future(asyncio.to_thread(_replace, self._path, text))
        await asyncio.shield(self._writing)  # a thread cannot be cancelled: `__aexit__` waits for it


def _replace(path: Path, text: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(text)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # frees the space of the incomplete file
        raise
