"""Addresses in the form of Envoy's configuration."""

from __future__ import annotations

from envoy_data_plane.envoy.config.core.v3 import Address, Pipe, SocketAddress

from epp.gateway.settings import PipeAddress, TcpAddress

__all__ = ["envoy_address"]


def envoy_address(address: TcpAddress | PipeAddress) -> Address:
    """Return an address in Envoy's form."""
    if isinstance(address, PipeAddress):
        return Address(pipe=Pipe(path=address.path))
    return Address(socket_address=SocketAddress(address=address.host, port_value=address.port))
