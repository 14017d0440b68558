"""Endpoints given on the command line."""

import asyncio
from collections.abc import Sequence

from epp.discovery.resolve import AddressBook, Lookup, system_lookup
from epp.discovery.target import Target, read_host, read_port
from epp.framework.datalayer import Discovery, Pool
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters


def parse_targets(text: str) -> tuple[Target, ...]:
    """Read `[name=]host:port,...`, IPv6 as `[address]:port`; a target without a name is called `host:port`.

    Raises ValueError that names the entry.
    """
    targets: list[Target] = []
    for position, entry in enumerate(map(str.strip, text.split(",")), start=1):
        try:
            target = _parse_target(entry)
        except ValueError as error:
            raise ValueError(f"endpoint {position} ({entry!r}): {error}") from None
        for other in targets:
            if other.name == target.name or (other.host, other.port) == (target.host, target.port):
                raise ValueError(f"endpoint {position} ({entry!r}) is there twice, as {other.name!r}: leave one out")
        targets.append(target)
    return tuple(targets)


def _parse_target(entry: str) -> Target:
    name, equals, address = entry.rpartition("=")
    host, colon, port = address.rpartition(":")
    if not colon or not host or (equals and not name):
        raise ValueError("write host:port, [ipv6]:port or name=host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address goes in brackets: write [address]:{port}")
    return Target(name or address, read_host(host), read_port(port))


class StaticDiscovery(Discovery[Parameters]):
    """A pool that never changes but for the addresses of its host names."""

    plugin_type = "static-discovery"

    def __init__(self, targets: Sequence[Target], *, lookup: Lookup = system_lookup) -> None:
        super().__init__()
        self._targets = tuple(targets)
        self._book = AddressBook(lookup)

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError when not one of the hosts has an address."""
        endpoints = await self._book.resolve(self._targets)
        if self._targets and not endpoints:
            hosts = ", ".join(target.host for target in self._targets)
            raise ConfigurationError(f"none of the endpoints' host names resolves: {hosts}")
        pool.replace(endpoints)

    async def follow(self, pool: Pool) -> None:
        """Resolve host names again and again until cancelled."""
        while True:
            wait = self._book.seconds_to_next(self._targets)
            if wait is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(wait)
                await self.refresh(pool)

    async def refresh(self, pool: Pool) -> None:
        """Resolve once; a name that does not resolve now keeps its address."""
        pool.replace(await self._book.resolve(self._targets))
