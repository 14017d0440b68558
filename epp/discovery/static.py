"""Endpoints given on the command line."""

from collections.abc import Sequence

from epp.discovery.targets import Lookup, Resolver, Target, system_lookup
from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.host_port import parse_host_port


def parse_targets(text: str) -> tuple[Target, ...]:
    """Read `[name=][https://]host:port,...`, IPv6 as `[address]:port`; a target without a name is called `host:port`.

    Raises ValueError with the position of the entry and the remedy.
    """
    targets: list[Target] = []
    for position, entry in enumerate(map(str.strip, text.split(",")), start=1):
        try:
            target = _parse_target(entry)
        except ValueError as error:
            raise ValueError(f"endpoint {position}: {error}") from None
        for other in targets:
            if other.name == target.name or (other.host, other.port) == (target.host, target.port):
                raise ValueError(f"endpoint {position}: {entry!r} repeats endpoint {other.name!r}: leave one out")
        targets.append(target)
    return tuple(targets)


def _parse_target(entry: str) -> Target:
    if not entry:
        raise ValueError("it is empty: write host:port, [ipv6]:port or name=host:port")
    name, equals, address = entry.rpartition("=")
    if equals and not name:
        raise ValueError(f"{entry!r} has an empty name: write host:port or name=host:port")
    scheme, separator, rest = address.rpartition("://")
    if scheme not in {"", "http", "https"}:
        raise ValueError(f"{entry!r} has scheme {scheme!r}: write http:// or https://")
    authority, slash, path = rest.partition("/") if separator else (address, "", "")
    if path:
        raise ValueError(
            f"{entry!r} has the path {slash + path!r}, but requests keep the path that the client asked for: "
            f"write {scheme}://{authority}"
        )
    place = parse_host_port(authority)
    return Target(name or authority, place.host, place.port, tls=scheme == "https")


class StaticDiscovery(Discovery[Parameters]):
    """A pool whose endpoints never change, except for the addresses of host names."""

    plugin_type = "static-discovery"

    def __init__(self, targets: Sequence[Target], *, lookup: Lookup = system_lookup) -> None:
        super().__init__()
        self.resolver = Resolver(lookup, targets)

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """Endpoints without an address."""
        return self.resolver.unresolved

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError when no host has an address."""
        targets = self.resolver.targets
        if not await self.resolver.refresh(pool) and targets:
            hosts = ", ".join(target.host for target in targets)
            raise ConfigurationError(
                f"none of the endpoints' host names resolves: {hosts}; correct them, or write IP addresses"
            )

    async def follow(self, pool: Pool) -> None:
        """Resolve host names again and again until cancelled."""
        await self.resolver.follow(pool)
