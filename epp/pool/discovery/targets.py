# SPDX-License-Identifier: Apache-2.0
"""Targets, which are configured endpoints, and the resolution of their host names."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import structlog

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.datalayer import Pool, Unresolved
from epp.framework.endpoint import Endpoint, PagePlace
from epp.framework.errors import ConfigurationError
from epp.runtime.addresses import HostPort, is_ip

Lookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns a host's addresses, in any order; raises OSError when there is none."""

_LOOKUP_SECONDS = 5.0
_UNRESOLVED_SECONDS = 2.0
_RESOLVED_SECONDS = 30.0
_IDLE_SECONDS = 5.0

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
    metrics: HostPort | None = None
    """Its metrics page, if that is not at the endpoint itself."""

    def endpoint(self, address: str, metrics_address: str = "") -> Endpoint:
        """Return the endpoint at this address, with the address of its metrics page."""
        page = self.metrics
        known = metrics_address or ("" if page is None else page.host)
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
            metrics=None if page is None else PagePlace(known, page.port, "" if known == page.host else page.host),
        )


_LOOKUPS = ThreadPoolExecutor(4, thread_name_prefix="lookup")
"""Threads of its own: a resolver that hangs holds up no file, and only so many lookups."""


async def system_lookup(host: str) -> Sequence[str]:
    """Query the system's resolver in a thread."""
    query = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    async with asyncio.timeout(_LOOKUP_SECONDS):
        found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, query)
    return [str(address[0]) for *_, address in found]


class Resolver:
    """Fills a pool with targets, and resolves their host names periodically.

    A name that no longer resolves keeps its last address. Each failure is logged once, until the name resolves again.
    If several targets have the same address and port, the first one is used.
    """

    def __init__(self, lookup: Lookup, targets: Sequence[Target] = ()) -> None:
        self.targets = tuple(targets)
        """In effect after the next `refresh`."""
        self._lookup = lookup
        self._hosts: frozenset[str] = frozenset()
        """Host names of the targets in effect."""
        self._addresses: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._refreshing = asyncio.Lock()
        self._repeated: set[tuple[str, str]] = set()
        """Pairs of names with the same address and port, of which the second is not used."""
        self._filled: tuple[Pool, tuple[Target, ...], dict[str, str]] | None = None
        self._count = 0

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
        if not self._hosts:
            return None
        return _RESOLVED_SECONDS if self._hosts <= self._addresses.keys() else _UNRESOLVED_SECONDS

    async def refresh(self, pool: Pool, *, unique: bool = False) -> int:
        """Resolve host names and fill the pool; return the number of endpoints.

        Targets whose host has never had an address are left out. With `unique`, raises ConfigurationError for two
        targets with the same address, and leaves the pool unchanged.
        """
        async with self._refreshing:
            targets = self.targets
            hosts = self._hosts = await asyncio.to_thread(_host_names, targets)
            self._addresses = {host: address for host, address in self._addresses.items() if host in hosts}
            self._failing = {host: reason for host, reason in self._failing.items() if host in hosts}
            await asyncio.gather(*map(self._resolve, sorted(hosts)))
            state = (pool, targets, self._addresses.copy())
            if state != self._filled:
                made = await asyncio.to_thread(_endpoints, targets, hosts, self._addresses)
                endpoints = self._without_repeated(made, refuse=unique)
                pool.replace(endpoints)
                self._filled, self._count = state, len(endpoints)
            return self._count

    async def follow(self, pool: Pool) -> None:
        """Refresh the pool until cancelled."""
        while True:
            await asyncio.sleep(self.refresh_seconds or _IDLE_SECONDS)
            if self.refresh_seconds is not None:
                await self.refresh(pool)

    def _without_repeated(self, endpoints: Sequence[Endpoint], *, refuse: bool) -> list[Endpoint]:
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


def _host_names(targets: Sequence[Target]) -> frozenset[str]:
    hosts = {target.host for target in targets} | {each.metrics.host for each in targets if each.metrics is not None}
    return frozenset(host for host in hosts if not is_ip(host))


def _endpoints(targets: Sequence[Target], hosts: frozenset[str], addresses: Mapping[str, str]) -> tuple[Endpoint, ...]:
    found = ((target, addresses.get(target.host) if target.host in hosts else target.host) for target in targets)
    return tuple(
        target.endpoint(address, "" if target.metrics is None else addresses.get(target.metrics.host, ""))
        for target, address in found
        if address is not None
    )


def _preference(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[int, int]:
    """Return a sort key: IPv4 first, then the lowest address, so that all replicas choose the same one."""
    return address.version, int(address)
