# SPDX-License-Identifier: Apache-2.0
"""Targets, which are configured endpoints, and the resolution of their host names."""

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
"""Endpoints created before the event loop runs other tasks, in half a millisecond."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """A configured endpoint, whose host name may still have to be resolved."""

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
    """Query the system's resolver in a thread."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_LOOKUP_SECONDS):
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Resolver:
    """Fills a pool with targets, and resolves their host names periodically.

    A name that no longer resolves keeps its last address. Each failure is logged once, until the name resolves again.
    If several targets have the same address and port, the first one is used.
    """

    def __init__(self, lookup: Lookup, targets: Sequence[Target] = ()) -> None:
        self.targets = tuple(targets)
        self._lookup = lookup
        self._names_of: tuple[Target, ...] = ()
        self._names: frozenset[str] = frozenset()
        """Host names of these targets."""
        self._made_of: tuple[Target, ...] = ()
        self._made: dict[int, Endpoint] = {}
        """Endpoints of these targets, by number."""
        self._addresses: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        """Reasons by host name."""
        self._refreshing = asyncio.Lock()
        self._repeated: set[tuple[str, str]] = set()
        """Pairs of names with the same address and port, of which the second is not used."""

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """Targets without an address; may be read in any thread."""
        failing = self._failing.copy()
        return tuple(
            Unresolved(f"{target.namespace}/{target.name}", target.host, failing[target.host], tls=target.tls)
            for target in self.targets
            if target.host in failing and target.host not in self._addresses
        )

    @property
    def refresh_seconds(self) -> float | None:
        """Time to the next resolution; None if no target has a host name."""
        hosts = self._hosts()
        if not hosts:
            return None
        return _RESOLVED_SECONDS if hosts <= self._addresses.keys() else _UNRESOLVED_SECONDS

    async def refresh(self, pool: Pool, *, unique: bool = False) -> int:
        """Resolve host names and fill the pool; return the number of endpoints.

        Targets whose host has never had an address are left out. With `unique`, raises ConfigurationError for two
        targets with the same address, and leaves the pool unchanged.
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
        """Return the endpoints of targets with an address, in steps; the same objects if the address is unchanged."""
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
        """Return one endpoint per address; each duplicate is logged once."""
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
        """Collect the host names of the targets, in steps."""
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
    """Return a sort key: IPv4 first, then the lowest address, so that all replicas choose the same one."""
    return address.version, int(address)
