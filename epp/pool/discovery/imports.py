# SPDX-License-Identifier: Apache-2.0
"""Endpoints of an InferencePoolImport: the gateways of the clusters that export a pool."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.messages import listed
from epp.framework.plugin import Parameters, Plugin
from epp.kube.objects.inference import InferencePoolImport
from epp.kube.objects.ocm import ManagedCluster
from epp.pool.clusters.tagger import ClusterTagger
from epp.pool.discovery.targets import Resolver, Target, parse_address, system_lookup

_MOST_CLUSTERS = 1000
_NAMES_SHOWN = 5
_KINDS = (InferencePoolImport.__name__, ManagedCluster.__name__)


class PoolImportParameters(Parameters, frozen=True):
    """The imported pool, and the addresses of the gateways of its clusters."""

    pool_import: str
    """`namespace/name` of an InferencePoolImport."""
    clusters: str = ClusterTagger.plugin_type
    """Name of the `cluster-data-source` that reads it, from the API server of the pool, a hub or files."""
    gateways: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Address of the gateway of each cluster by its name: `host:port`, or a URL. Host names are resolved every 30 s."""
    gateway_claim: str = ""
    """Claim of a ManagedCluster with the address of its gateway, for clusters that `gateways` does not name."""

    def __post_init__(self) -> None:
        if "/" not in self.pool_import.strip("/"):
            name = self.pool_import
            raise ValueError(f"poolImport is {name!r}: write the namespace/name of an InferencePoolImport")
        for cluster, address in self.gateways.items():
            try:
                parse_address(address)
            except ValueError as error:
                raise ValueError(f"gateways.{cluster}: {error}") from None


class PoolImportDiscovery(Discovery[PoolImportParameters]):
    """The gateways of the clusters that export a pool: one endpoint for each cluster, with the name of the cluster.

    An endpoint has the labels of the ManagedCluster. The local cluster of the `cluster-data-source` has no endpoint,
    since another source has its pods. At most 1,000 clusters count.
    """

    plugin_type = "pool-import-discovery"

    def setup(self) -> None:
        self._resolver = Resolver(system_lookup)
        self._clusters: ClusterTagger
        self._without: tuple[str, ...] = ()
        """Reasons that clusters which export the pool have no endpoint."""

    @property
    def references(self) -> Mapping[str, str]:
        return {"clusters": self.parameters.clusters}

    def connect(self, plugins: Mapping[str, Plugin]) -> None:
        """Set the reader of the objects; raises ValueError for a plugin of another type."""
        found = plugins["clusters"]
        if not isinstance(found, ClusterTagger):
            raise ValueError(f"clusters is {found.name!r}: name a {ClusterTagger.plugin_type}")  # noqa: TRY004  a setting
        self._clusters = found

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        return self._resolver.unresolved

    @property
    def trouble(self) -> str:
        """Reason that endpoints may be out of date or missing."""
        name = self.parameters.pool_import
        if unread := self._clusters.unread(_KINDS):
            return unread
        if name not in self._clusters.hub.imports:
            return f"there is no InferencePoolImport {name}: correct poolImport, or check that its controller runs"
        return listed(self._without, _NAMES_SHOWN, "; ")

    async def start(self, pool: Pool) -> None:
        """Fill the pool from the objects that the hub has sent so far."""
        self._resolver.targets, self._without = self._gateways()
        await self._resolver.refresh(pool)

    async def follow(self, pool: Pool) -> None:
        """Apply changes of the objects and new addresses of host names until cancelled."""
        changed = asyncio.Event()
        unsubscribe = self._clusters.subscribe(changed.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._resolver.follow(pool))
                while True:
                    await self.start(pool)
                    await changed.wait()
                    changed.clear()
        finally:
            unsubscribe()

    def _gateways(self) -> tuple[tuple[Target, ...], tuple[str, ...]]:
        """Return the gateways of the clusters, and the reasons that some clusters have none."""
        given, hub = self.parameters, self._clusters.hub
        found = hub.imports.get(given.pool_import)
        exporting = () if found is None else found.clusters
        remote = (name for name in exporting if name != self._clusters.parameters.cluster)
        targets: list[Target] = []
        without: list[str] = []
        for name in islice(remote, _MOST_CLUSTERS):
            cluster = hub.clusters.get(name)
            address = given.gateways.get(name, "")
            if not address and cluster is not None:
                address = cluster.claims.get(given.gateway_claim, "")
            if not address:
                claim = f", or as claim {given.gateway_claim} of its ManagedCluster" if given.gateway_claim else ""
                without.append(f"cluster {name} has no gateway: write its address under gateways{claim}")
                continue
            try:
                place, tls = parse_address(address)
            except ValueError as error:
                without.append(f"claim {given.gateway_claim} of ManagedCluster {name}: {error}")
                continue
            labels = {} if cluster is None else cluster.metadata.labels
            namespace = given.pool_import.partition("/")[0]
            targets.append(Target(name, place.host, place.port, namespace, labels, cluster=name, tls=tls))
        return tuple(targets), tuple(without)
