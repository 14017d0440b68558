# SPDX-License-Identifier: Apache-2.0
"""The address of the other side of a transport."""

import asyncio


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return it as gRPC writes it: `ipv4:1.2.3.4:567`, `ipv6:[::1]:567`, or `unix:`."""
    name = transport.get_extra_info("peername")
    match name:
        case (str(host), int(port)):
            return f"ipv4:{host}:{port}"
        case (str(host), int(port), *_):
            return f"ipv6:[{host}]:{port}"
    return "unix:"
