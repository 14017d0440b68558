"""Turns host names into addresses, and remembers the last one of each for when its name stops resolving."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import structlog

from epp.discovery.target import Target
from epp.framework.endpoint import Endpoint

Lookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns a host's addresses, in any order; raises OSError when there is none."""

_LOOKUP_SECONDS = 5.0
_UNRESOLVED_SECONDS = 2.0
_RESOLVED_SECONDS = 30.0

_log = structlog.get_logger()


async def system_lookup(host: str) -> Sequence[str]:
    """Ask the machine's resolver, in a thread."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_LOOKUP_SECONDS):
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class AddressBook:
    """The address of every host asked for; each failure to resolve is logged once until it is over."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._addresses: dict[str, str] = {}
        self._failing: set[str] = set()

    async def resolve(self, targets: Iterable[Target]) -> list[Endpoint]:
        """Return the endpoints, in order, without those whose host never had an address."""
        wanted = tuple(targets)
        hosts = sorted({target.host for target in wanted if not target.is_literal})
        self._addresses = {host: address for host, address in self._addresses.items() if host in hosts}
        self._failing.intersection_update(hosts)
        await asyncio.gather(*map(self._refresh, hosts))
        return [self._endpoint(target) for target in wanted if target.is_literal or target.host in self._addresses]

    def seconds_to_next(self, targets: Iterable[Target]) -> float | None:
        """Return after how many seconds to resolve again; None when there is nothing to resolve."""
        hosts = {target.host for target in targets if not target.is_literal}
        if not hosts:
            return None
        return _RESOLVED_SECONDS if hosts <= self._addresses.keys() else _UNRESOLVED_SECONDS

    def _endpoint(self, target: Target) -> Endpoint:
        literal = target.is_literal
        return Endpoint(
            target.name,
            target.host if literal else self._addresses[target.host],
            target.port,
            namespace=target.namespace,
            labels=target.labels,
            host="" if literal else target.host,
            node=target.node,
            cluster=target.cluster,
            accelerator=target.accelerator,
        )

    async def _refresh(self, host: str) -> None:
        try:
            addresses = await self._lookup(host)
            first = min(map(ipaddress.ip_address, addresses), key=_preference)
        except (OSError, ValueError) as error:  # a host without addresses, a name that is no name, no answer in time
            if host not in self._failing:
                self._failing.add(host)
                _log.warning(
                    "host name does not resolve",
                    host=host,
                    reason=str(error) or type(error).__name__,
                    kept_address=self._addresses.get(host),
                )
            return
        self._failing.discard(host)
        self._addresses[host] = str(first)


def _preference(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[int, int]:
    """IPv4 first, then the lowest: every replica takes the same one, whatever order the resolver answers in."""
    return address.version, int(address)
