# SPDX-License-Identifier: Apache-2.0
"""Endpoints given on the command line: their syntax, and the pool of them."""

import re
from collections.abc import Sequence

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.pool.discovery.targets import Lookup, Resolver, Target, system_lookup
from epp.runtime.addresses import HostPort, parse_host_port

_ACCELERATOR = "accelerator"
_LOOPBACK = "127.0.0.1"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_NEARLY_URL = re.compile(r"https?[:/]", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AROUND_SIGNS = re.compile(r"\s*([=;])\s*")
_PORT_ALONE = re.compile(r":?([0-9]+)")


def parse_targets(text: str) -> tuple[Target, ...]:
    """Read a list of `[name=]address[;label=value...]`, separated by commas or blanks.

    An address is `host:port`, `[ipv6]:port`, the URL of a server without a path, or a port of this machine. The label
    `accelerator` names the class of the hardware. The default name is `host:port`. Raises ValueError with the position
    of the entry and the remedy.
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
    """Return the entries; empty ones for superfluous commas, except for a trailing one."""
    parts = _AROUND_SIGNS.sub(r"\1", text.strip()).removesuffix(",").split(",")
    return [entry for part in parts for entry in part.split() or [""]]


def _parse_target(entry: str) -> Target:
    if not entry:
        raise ValueError("it is empty: leave a comma out, or write host:port, a port or a URL")
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
        raise ValueError(f"{text!r} is of scheme {scheme}, but model servers speak HTTP: write http:// or https://")
    if not authority or _PORT_ALONE.fullmatch(authority):
        raise ValueError(f"{text!r} has no host: write {scheme}://host:port")
    _, at, server = authority.rpartition("@")
    if at:
        raise ValueError(f"{text!r} has a user name, which no request is sent with: write {scheme}://{server}")
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
            raise ValueError(f"label {key!r} is there twice: leave one out")
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
        """Endpoints without an address."""
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
        """Resolve host names periodically until cancelled."""
        await self.resolver.follow(pool)
