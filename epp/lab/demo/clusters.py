# SPDX-License-Identifier: Apache-2.0
"""The demo of two clusters: the local one fills up, then fails, and comes back."""

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from epp.config import LoadedConfig, load_text
from epp.config.load import sample_texts
from epp.lab.demo.servers import ModelServer, ServerSpec, model_servers
from epp.runtime.addresses import parse_host_port

LOCAL, REMOTE = "east", "west"
PRESET = "h100"
_SERVERS = 2
_BUSY = {"running": 40, "waiting": 20, "kv_usage": 0.8}
_UNREACHABLE = "cluster.open-cluster-management.io/unreachable"
_API = "cluster.open-cluster-management.io"


class Phase(Enum):
    """What happens in the local cluster."""

    CALM = "east and west are calm: east is the local cluster, and serves"
    FULL = "east is full: its score falls and its servers have queues, so that west serves"
    FAILED = "east has failed: its servers are gone and the hub has tainted it"
    BACK = "east is back: new requests return to it"


_GPU_SCORES = {Phase.CALM: 60, Phase.FULL: -100, Phase.FAILED: -100, Phase.BACK: 60}


def cluster_config(objects: Path) -> LoadedConfig:
    """Return the sample `multi-cluster`, with the objects of a hub in a directory."""
    return load_text(config_text(objects), "demo configuration")


def config_text(objects: Path) -> str:
    """Return the text of that configuration."""
    found = yaml.safe_load(sample_texts()["multi-cluster"])
    given: dict[str, dict[str, Any]] = {
        "cluster-data-source": {"paths": [str(objects)], "cluster": LOCAL},
        "accelerator-data-source": {"cluster": LOCAL},
    }
    for plugin in found["plugins"]:
        if more := given.get(plugin["type"]):
            plugin["parameters"] = {**plugin.get("parameters", {}), **more}
    return yaml.safe_dump(found, sort_keys=False)


def write_objects(directory: Path, phase: Phase) -> None:
    """Write the objects of the hub for a phase, atomically."""
    added = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    taint = {"key": _UNREACHABLE, "effect": "NoSelect", "timeAdded": added}
    documents = [
        _cluster(LOCAL, [taint] if phase is Phase.FAILED else []),
        _cluster(REMOTE, []),
        _score(LOCAL, _GPU_SCORES[phase]),
        _score(REMOTE, 20),
    ]
    new = directory / "hub.yaml.new"  # files with this suffix are not read
    new.write_text(yaml.safe_dump_all(documents))
    new.rename(directory / "hub.yaml")


def _cluster(name: str, taints: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_API}/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name},
        "spec": {"hubAcceptsClient": True, "taints": taints},
    }


def _score(cluster: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "AddOnPlacementScore",
        "metadata": {"name": "resource-usage-score", "namespace": cluster},
        "status": {"scores": [{"name": "gpuClusterAvailable", "value": value}]},
    }


@dataclass
class TwoClusters:
    """Two clusters of servers, and the hub's objects on them."""

    objects: Path
    """Directory of the objects."""
    servers: tuple[ModelServer, ...]
    _local: AsyncExitStack
    """Stops the servers of the local cluster."""
    _model: str
    phase: Phase = Phase.CALM

    async def enter(self, phase: Phase) -> None:
        """Start a phase; raises ServerFailedError."""
        self.phase = phase
        write_objects(self.objects, phase)
        if phase is Phase.FULL:
            await self._occupy()
        elif phase is Phase.FAILED:
            await self._local.aclose()
        elif phase is Phase.BACK:
            for server in self._locals:
                port = parse_host_port(server.address).port
                await self._local.enter_async_context(model_servers([server.spec], self._model, port=port))

    async def run(self, phase_seconds: float, phases: Sequence[Phase] = tuple(Phase)) -> None:
        """Repeat the phases until cancelled."""
        for phase in itertools.cycle(phases):
            await self.enter(phase)
            await asyncio.sleep(phase_seconds)

    @property
    def _locals(self) -> list[ModelServer]:
        return [server for server in self.servers if server.spec.cluster == LOCAL]

    async def _occupy(self) -> None:
        async with aiohttp.ClientSession() as session:
            for server in self._locals:
                async with session.post(f"http://{server.address}/sim/occupy", json=_BUSY) as answer:
                    answer.raise_for_status()


@asynccontextmanager
async def two_clusters(model: str) -> AsyncIterator[TwoClusters]:
    """Run both clusters until the block ends; raises ServerFailedError."""
    async with AsyncExitStack() as stack:
        objects = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-hub-")))
        write_objects(objects, Phase.CALM)
        local, remote = (
            [ServerSpec(PRESET, f"{cluster}-{number}", cluster) for number in range(1, _SERVERS + 1)]
            for cluster in (LOCAL, REMOTE)
        )
        west = await stack.enter_async_context(model_servers(remote, model))
        of_local = await stack.enter_async_context(AsyncExitStack())
        east = await of_local.enter_async_context(model_servers(local, model))
        yield TwoClusters(objects, (*east, *west), of_local, model)
