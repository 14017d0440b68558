# SPDX-License-Identifier: Apache-2.0
"""Endpoints given on the command line."""

from collections.abc import Sequence

from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.pool.discovery.targets import Lookup, Resolver, Target, system_lookup


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
        """Fill the pool; raises ConfigurationError when no host has an address, or two endpoints the same."""
        targets = self.resolver.targets
        found = await self.resolver.refresh(pool, unique=True)
        if not found and targets:
            hosts = ", ".join(target.host for target in targets)
            raise ConfigurationError(
                f"none of the endpoints' host names resolves: {hosts}; correct them, or write IP addresses"
            )

    async def follow(self, pool: Pool) -> None:
        """Resolve host names again and again until cancelled."""
        await self.resolver.follow(pool)
