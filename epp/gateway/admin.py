"""Questions to the admin interface of a running Envoy: its readiness, its listener, the health of a cluster."""

from __future__ import annotations

from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from epp.gateway.settings import PipeAddress, TcpAddress

__all__ = ["EnvoyAdmin"]

_PATIENCE = aiohttp.ClientTimeout(total=2.0)


class _SocketAddress(msgspec.Struct, frozen=True):
    address: str
    port_value: int


class _LocalAddress(msgspec.Struct, frozen=True):
    socket_address: _SocketAddress


class _ListenerStatus(msgspec.Struct, frozen=True):
    name: str
    local_address: _LocalAddress


class _Listeners(msgspec.Struct, frozen=True):
    listener_statuses: list[_ListenerStatus]


class _Stat(msgspec.Struct, frozen=True):
    value: int = 0


class _Stats(msgspec.Struct, frozen=True):
    stats: list[_Stat]


class EnvoyAdmin:
    """A client of the admin interface at `address`; use as an async context manager."""

    def __init__(self, address: TcpAddress | PipeAddress) -> None:
        if isinstance(address, PipeAddress):
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(address.path)
            base_url = "http://envoy"
        else:
            connector = aiohttp.TCPConnector()
            base_url = f"http://{address}"
        self._session = aiohttp.ClientSession(base_url, connector=connector, timeout=_PATIENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ready_listener(self, name: str) -> TcpAddress | None:
        """Return where a listener is really bound, or None while Envoy is not ready or does not answer.

        Ready: the clusters are initialised and the listener accepts. The picker was asked for its health once, with
        whatever result.
        """
        try:
            async with self._session.get("/ready") as response:
                if response.status != HTTPStatus.OK:
                    return None
            async with self._session.get("/listeners", params={"format": "json"}) as response:
                listeners = msgspec.json.decode(await response.read(), type=_Listeners)
        except (aiohttp.ClientError, TimeoutError):
            return None
        bound = {status.name: status.local_address.socket_address for status in listeners.listener_statuses}
        return TcpAddress(bound[name].address, bound[name].port_value) if name in bound else None

    async def has_healthy_host(self, cluster: str) -> bool:
        """Return whether a host of the cluster is healthy; False where Envoy does not answer."""
        query = {"format": "json", "filter": rf"^cluster\.{cluster}\.membership_healthy$"}
        try:
            async with self._session.get("/stats", params=query) as response:
                found = msgspec.json.decode(await response.read(), type=_Stats)
        except (aiohttp.ClientError, TimeoutError):
            return False
        return any(stat.value for stat in found.stats)
