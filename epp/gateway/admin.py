"""The question put to a running Envoy's admin interface: are you ready, and where do you listen."""

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

        Ready: the clusters are initialised (the picker was asked for its health once) and the listener accepts.
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
