# SPDX-License-Identifier: Apache-2.0
"""A fake API server with pods, nodes and a pool, and discovery of its endpoints."""

from epp.framework import ManualClock, SystemClock
from epp.framework.endpoint import LabelSelector
from epp.kube.cluster import Cluster
from epp.pool.discovery import PodDiscovery, PodTarget, PoolName
from epp.routing.datastore import Datastore
from epp.runtime.supervisor import Supervisor
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

PODS = "/api/v1/namespaces/llm/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
NODES = "/api/v1/nodes"
VLLM = PodTarget(LabelSelector.of({"app": "vllm"}), (8000,))


class Place:
    """The pods are those of the pool `llm/pool`, or those of a target."""

    def __init__(self, source: PoolName | PodTarget = PoolName("pool", "llm")) -> None:  # noqa: B008  never changes
        self.api = FakeApi()
        self.api.install(PODS, POOLS, NODES)
        self.store = Datastore(ManualClock())
        self.supervisor = Supervisor()
        self.cluster = Cluster(self.api, clock=SystemClock(), supervisor=self.supervisor)
        self.discovery = PodDiscovery(self.cluster, "llm", source)

    async def start(self) -> None:
        await self.discovery.start(self.store)
        self.supervisor.start("discovery", lambda: self.discovery.follow(self.store))

    async def close(self) -> None:
        await self.cluster.close()
        await self.supervisor.stop()

    def pod(self, name: str, *, ready: bool = True, app: str = "vllm", uid: str = "") -> None:
        self.api.put(
            PODS,
            name,
            apiVersion="v1",
            kind="Pod",
            metadata={"namespace": "llm", "uid": uid or f"uid-{name}", "labels": {"app": app}},
            spec={"nodeName": "n1", "containers": []},
            status={"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": str(ready)}]},
        )

    def node(self, name: str, boot_id: str, **labels: str) -> None:
        status = {"nodeInfo": {"bootID": boot_id}}
        self.api.put(NODES, name, apiVersion="v1", kind="Node", metadata={"labels": labels}, status=status)

    def pool(self, *ports: int, app: str = "vllm", name: str = "pool", **annotations: str) -> None:
        self.api.put(
            POOLS,
            name,
            apiVersion="inference.networking.k8s.io/v1",
            kind="InferencePool",
            metadata={"namespace": "llm", "annotations": annotations},
            spec={"selector": {"matchLabels": {"app": app}}, "targetPorts": [{"number": port} for port in ports]},
        )

    @property
    def endpoints(self) -> set[tuple[str, int]]:
        return {(endpoint.name, endpoint.port) for endpoint in self.store.endpoints}

    @property
    def boot_ids(self) -> dict[str, str]:
        return {endpoint.name: endpoint.boot_id for endpoint in self.store.endpoints}

    async def has(self, *endpoints: tuple[str, int]) -> None:
        await until(lambda: self.endpoints == set(endpoints), f"the endpoints are {endpoints}")
