# SPDX-License-Identifier: Apache-2.0
"""Targets, which are configured endpoints: the resolution of their host names, and their form on the command line."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import structlog

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.endpoint import Endpoint, PagePlace
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.runtime.addresses import HostPort, is_ip, parse_host_port

Lookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, in any order; raises OSError if there are none."""

_LOOKUP_SECONDS = 5.0
_UNRESOLVED_SECONDS = 2.0
_RESOLVED_SECONDS = 30.0
_IDLE_SECONDS = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """A configured endpoint, whose host name may be unresolved."""

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
    """Address of the metrics page, if it differs from the endpoint's."""

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
"""Separate threads: a resolver that hangs does not block reads of files, and blocks a limited number of lookups."""


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
        """Current targets; a change takes effect at the next `refresh`."""
        self._lookup = lookup
        self._hosts: frozenset[str] = frozenset()
        """Host names of the targets in effect."""
        self._addresses: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._refreshing = asyncio.Lock()
        self._repeated: set[tuple[str, str]] = set()
        """Pairs of names with the same address and port; the second endpoint is not used."""
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
        while True:
            await asyncio.sleep(self.refresh_seconds or _IDLE_SECONDS)
            if self.refresh_seconds is not None:
                await self.refresh(pool)

    def _without_repeated(self, endpoints: Sequence[Endpoint], *, refuse: bool) -> list[Endpoint]:
        firsts: dict[str, Endpoint] = {}
        repeated = set()
        for endpoint in endpoints:
            first = firsts.setdefault(endpoint.hostport, endpoint)
            if first is endpoint:
                continue
            one, other = pair = first.name, endpoint.name
            address = first.hostport
            if refuse:
                raise ConfigurationError(f"endpoints {one!r} and {other!r} are one server, {address}: leave one out")
            if pair not in self._repeated:
                text = "two endpoints have the same address: the second one is not used"
                _log.warning(text, address=address, first=one, second=other)
            repeated.add(pair)
        self._repeated = repeated
        return list(firsts.values())

    async def _resolve(self, host: str) -> None:
        try:
            addresses = await self._lookup(host)
            # IPv4 first, then the lowest address, so that all replicas choose the same one.
            first = min(map(ipaddress.ip_address, addresses), key=lambda each: (each.version, int(each)))
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


_ACCELERATOR = "accelerator"
_LOOPBACK = "127.0.0.1"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_NEARLY_URL = re.compile(r"https?[:/]", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AROUND_SIGNS = re.compile(r"\s*([=;])\s*")
_PORT_ALONE = re.compile(r":?([0-9]+)")


def parse_targets(text: str) -> tuple[Target, ...]:
    """Parse a list of `[name=]address[;label=value...]`, separated by commas or spaces.

    An address is `host:port`, `[ipv6]:port`, the URL of a server without a path, or a port of this machine. The label
    `accelerator` is the class of the hardware. The default name is `host:port`. Raises ValueError with the position of
    the entry and the remedy.
    """
    targets: list[Target] = []
    for position, entry in enumerate(_entries(text), start=1):
        try:
            target = _parse_target(entry)
            _check_unique(target, entry, targets)
        except ValueError as error:
            raise ValueError(f"endpoint {position}: {error}") from None
        targets.append(target)
    return tuple(targets)


def _entries(text: str) -> list[str]:
    """Return the entries, with empty entries for superfluous commas; a trailing comma is ignored."""
    parts = _AROUND_SIGNS.sub(r"\1", text.strip()).removesuffix(",").split(",")
    return [entry for part in parts for entry in part.split() or [""]]


def _parse_target(entry: str) -> Target:
    if not entry:
        raise ValueError("the entry is empty: leave a comma out, or write host:port, a port or a URL")
    first, *rest = entry.split(";")
    name, equals, address = ("", "", first) if _URL.match(first) else first.partition("=")
    if not equals:
        name, address = "", first
    elif not name:
        raise ValueError(f"{entry!r} has an empty name: write host:port or name=host:port")
    place, tls = parse_address(address)
    labels = _parse_labels(rest)
    accelerator = labels.pop(_ACCELERATOR, None)
    return Target(
        name or str(place),
        place.host,
        place.port,
        labels=labels,
        accelerator=None if accelerator is None else AcceleratorDeclaration(accelerator_class=accelerator),
        tls=tls,
    )


def parse_address(text: str) -> tuple[HostPort, bool]:
    """Return host and port of `host:port`, a URL or a port, and whether it speaks HTTPS; raises ValueError."""
    if url := _URL.fullmatch(text):
        return _parse_url(text, url[1].lower(), url[2], url[3])
    if _NEARLY_URL.match(text):
        raise ValueError(f"{text!r} is not a URL: write http://host:port or https://host:port")
    authority, slash, path = text.partition("/")
    if path and authority:
        raise ValueError(_has_path(text, slash + path, authority))
    if port := _PORT_ALONE.fullmatch(authority):
        authority = f"{_LOOPBACK}:{port[1]}"
    return parse_host_port(authority or text), False


def _parse_url(text: str, scheme: str, authority: str, path: str) -> tuple[HostPort, bool]:
    if scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{text!r} has the scheme {scheme}, but model servers use HTTP: write http:// or https://")
    if not authority or _PORT_ALONE.fullmatch(authority):
        raise ValueError(f"{text!r} has no host: write {scheme}://host:port")
    _, at, server = authority.rpartition("@")
    if at:
        raise ValueError(f"{text!r} has a user name, but requests are sent without one: write {scheme}://{server}")
    if path not in {"", "/"}:
        raise ValueError(_has_path(text, path, f"{scheme}://{authority}"))
    if not authority.rpartition("]")[2].count(":"):
        authority = f"{authority}:{_DEFAULT_PORTS[scheme]}"
    return parse_host_port(authority), scheme == "https"


def _has_path(text: str, path: str, remedy: str) -> str:
    return f"{text!r} has the path {path!r}, but requests keep the path that clients ask for: write {remedy}"


def _parse_labels(parts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ValueError(f"{part!r} is not a label: write label=value after each semicolon")
        if key in labels:
            raise ValueError(f"label {key!r} is repeated: leave one out")
        labels[key] = value
    return labels


def _check_unique(target: Target, entry: str, others: list[Target]) -> None:
    for position, other in enumerate(others, start=1):
        if (other.host.lower(), other.port) == (target.host.lower(), target.port):
            raise ValueError(f"{entry!r} is the server of endpoint {position}, {other.name!r}: leave one out")
        if other.name == target.name:
            raise ValueError(f"{entry!r} has the name of endpoint {position}, {other.name!r}: choose another")


class StaticDiscovery(Discovery[Parameters]):
    """A pool of fixed endpoints; only the addresses of host names may change."""

    plugin_type = "static-discovery"

    def __init__(self, targets: Sequence[Target], *, lookup: Lookup = system_lookup) -> None:
        super().__init__()
        self.resolver = Resolver(lookup, targets)

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        return self.resolver.unresolved

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError if no host has an address, or two endpoints have the same."""
        targets = self.resolver.targets
        found = await self.resolver.refresh(pool, unique=True)
        if not found and targets:
            hosts = ", ".join(target.host for target in targets)
            raise ConfigurationError(
                f"none of the endpoints' host names resolves: {hosts}; correct them, or write IP addresses"
            )

    async def follow(self, pool: Pool) -> None:
        await self.resolver.follow(pool)
