# SPDX-License-Identifier: Apache-2.0
"""Targets, the endpoints as people write them, and the resolution of their host names."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.datalayer import Pool, Unresolved
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.runtime.addresses import is_ip

Lookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns a host's addresses, in any order; raises OSError when there is none."""

_LOOKUP_SECONDS = 5.0
_UNRESOLVED_SECONDS = 2.0
_RESOLVED_SECONDS = 30.0
_IDLE_SECONDS = 5.0
_BATCH = 64
"""Endpoints that are made before the event loop runs other tasks: half a millisecond's work."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint whose host may still have to be resolved."""

    name: str
    host: str
    """An IP address in canonical form, or a host name."""
    port: int
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    cluster: str = ""
    accelerator: AcceleratorDeclaration | None = None
    tls: bool = False
    """Whether it speaks HTTPS."""

    def endpoint(self, address: str) -> Endpoint:
        """Return the endpoint at this address."""
        return Endpoint(
            self.name,
            address,
            self.port,
            namespace=self.namespace,
            labels=self.labels,
            host="" if address == self.host else self.host,
            node=self.node,
            cluster=self.cluster,
            accelerator=self.accelerator,
            tls=self.tls,
        )


async def system_lookup(host: str) -> Sequence[str]:
    """Query the system's resolver, in a thread."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_LOOKUP_SECONDS):
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Resolver:
    """Fills a pool with targets, and resolves their host names again and again.

    A name that stops resolving keeps its last address. Each failure is logged once, until the name resolves again. Of
    targets that resolve to one address and port, the first is in the pool.
    """

    def __init__(self, lookup: Lookup, targets: Sequence[Target] = ()) -> None:
        self.targets = tuple(targets)
        self._lookup = lookup
        self._names_of: tuple[Target, ...] = ()
        self._names: frozenset[str] = frozenset()
        """Host names of these targets: whether a host is an address is found out once."""
        self._made_of: tuple[Target, ...] = ()
        self._made: dict[int, Endpoint] = {}
        """Endpoints of these targets, by number."""
        self._addresses: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        """Why, by host."""
        self._refreshing = asyncio.Lock()
        self._repeated: set[tuple[str, str]] = set()
        """Names of endpoints left out of the pool, each after that of the one with the same address and port."""

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """The targets that are left out; may be read in any thread."""
        failing = self._failing.copy()
        return tuple(
            Unresolved(f"{target.namespace}/{target.name}", target.host, failing[target.host], tls=target.tls)
            for target in self.targets
            if target.host in failing and target.host not in self._addresses
        )

    @property
    def refresh_seconds(self) -> float | None:
        """Time to the next resolution; None where no target has a host name."""
        hosts = self._hosts()
        if not hosts:
            return None
        return _RESOLVED_SECONDS if hosts <= self._addresses.keys() else _UNRESOLVED_SECONDS

    async def refresh(self, pool: Pool, *, unique: bool = False) -> int:
        """Resolve host names and fill the pool; return the number of endpoints.

        Targets whose host has never had an address are left out. Raises ConfigurationError, with the pool unchanged,
        for two targets with one address if they have to be `unique`.
        """
        async with self._refreshing:
            await self._find_names()
            hosts = self._hosts()
            self._addresses = {host: address for host, address in self._addresses.items() if host in hosts}
            self._failing = {host: reason for host, reason in self._failing.items() if host in hosts}
            await asyncio.gather(*map(self._resolve, sorted(hosts)))
            endpoints = self._without_repeated(await self._endpoints(), refuse=unique)
            await asyncio.sleep(0)
            pool.replace(endpoints)
            return len(endpoints)

    async def follow(self, pool: Pool) -> None:
        """Refresh the pool until cancelled."""
        while True:
            await asyncio.sleep(self.refresh_seconds or _IDLE_SECONDS)
            if self.refresh_seconds is not None:
                await self.refresh(pool)

    async def _endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints of the targets that have an address, made a few at a time.

        One whose address is the same as before is the same object.
        """
        targets, before = self.targets, self._made
        made: dict[int, Endpoint] = {}
        for number, target in enumerate(targets, 1):
            address = self._address_of(target.host)
            if address is not None:
                known = before.get(number) if self._made_of is targets else None
                made[number] = known if known is not None and known.address == address else target.endpoint(address)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        self._made_of, self._made = targets, made
        return tuple(made.values())

    def _without_repeated(self, endpoints: Sequence[Endpoint], *, refuse: bool) -> list[Endpoint]:
        """Return one endpoint for each address; the others are logged once, for as long as they repeat it."""
        firsts: dict[str, Endpoint] = {}
        repeated = set()
        for endpoint in endpoints:
            first = firsts.setdefault(endpoint.hostport, endpoint)
            pair = (first.name, endpoint.name)
            if first is endpoint:
                continue
            if refuse:
                raise ConfigurationError(
                    f"endpoints {pair[0]!r} and {pair[1]!r} are one server, {first.hostport}: leave one out"
                )
            if pair not in self._repeated:
                _log.warning(
                    "two endpoints are one server, the second is not used",
                    address=first.hostport,
                    first=pair[0],
                    second=pair[1],
                )
            repeated.add(pair)
        self._repeated = repeated
        return list(firsts.values())

    async def _find_names(self) -> None:
        """Find out which of the targets have a host name, a few at a time."""
        targets = self.targets
        if self._names_of is targets:
            return
        names = set()
        for number, target in enumerate(targets, 1):
            if not is_ip(target.host):
                names.add(target.host)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        self._names_of, self._names = targets, frozenset(names)

    def _hosts(self) -> frozenset[str]:
        if self._names_of is not self.targets:
            self._names_of = self.targets
            self._names = frozenset(target.host for target in self.targets if not is_ip(target.host))
        return self._names

    def _address_of(self, host: str) -> str | None:
        return self._addresses.get(host) if host in self._hosts() else host

    async def _resolve(self, host: str) -> None:
        try:
            addresses = await self._lookup(host)
            first = min(map(ipaddress.ip_address, addresses), key=_preference)
        except (OSError, ValueError) as error:  # no address, not a valid name, no answer in time
            reason = str(error) or type(error).__name__
            if host not in self._failing:
                _log.warning(
                    "host name does not resolve", host=host, reason=reason, kept_address=self._addresses.get(host)
                )
            self._failing[host] = reason
            return
        self._failing.pop(host, None)
        self._addresses[host] = str(first)


def _preference(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[int, int]:
    """IPv4 first, then the lowest: every replica takes the same one, whatever order the resolver answers in."""
    return address.version, int(address)
