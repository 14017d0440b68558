# SPDX-License-Identifier: Apache-2.0
"""500 pods on 100 nodes that kwok keeps alive: found, tagged by the labels of their nodes, replaced batch by batch."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kube.build_assets import KWOK
from tests.support.kube import manifests as write
from tests.support.kube.hardware import H100, HARDWARE_ROLE, ONE_GPU, T4, node_of
from tests.support.kube.pickers import Picker, picker_as, pool_of
from tests.support.kube.processes import Process
from tests.support.kube.running import Cluster
from tests.support.kube.space import Space
from tests.support.kube.users import PICKER_ROLE
from tests.support.waiting import until

PODS, NODES, BATCH = 500, 100, 50
FAKE = {"kwok.x-k8s.io/node": "fake"}
ENOUGH_SECONDS = 300.0


@asynccontextmanager
async def kwok(cluster: Cluster, directory: Path) -> AsyncIterator[None]:
    """Run it for the nodes that are annotated as fake; its pods have addresses of loopback."""
    place = KWOK.directory()
    stages = [each for each in sorted(place.glob("stage/*/fast/*.yaml")) if each.name != "kustomization.yaml"]
    selector = ",".join(f"{name}={value}" for name, value in FAKE.items())
    process = Process(
        directory / "kwok.log",
        str(place / "kwok"),
        f"--kubeconfig={cluster.kubeconfig(directory / 'kwok-kubeconfig')}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={selector}",
        "--cidr=127.77.0.1/16",
        "--node-ip=127.0.0.1",
        *(f"--config={each}" for each in stages if each.parent.parent.name in {"node", "pod"}),
    )

    async def started() -> bool:
        return process.running

    try:
        await process.start(started)
        yield
    finally:
        process.kill()


async def make(space: Space, prefix: str, numbers: Iterable[int]) -> None:
    """Create pods that nobody runs but kwok, which gives them an address and says that they are ready."""
    pods = [
        write.pod(
            f"{prefix}-{number}", namespace=space.namespace, node=node_of(space, str(number % NODES)), resources=ONE_GPU
        )
        for number in numbers
    ]
    await asyncio.gather(*map(space.admin.create, pods))


async def end(space: Space, prefix: str, numbers: Iterable[int]) -> None:
    """Delete pods, which stay until kwok has ended them."""
    pods = [write.pod(f"{prefix}-{number}", namespace=space.namespace) for number in numbers]
    await asyncio.gather(*(space.admin.delete(pod, grace_seconds=30) for pod in pods))


async def has(picker: Picker, *names: str) -> None:
    """Wait until these pods are the endpoints."""
    wanted = {f"{name}-rank-0" for name in names}

    async def same() -> bool:
        return set(await picker.endpoints()) == wanted

    await until(same, f"{len(wanted)} endpoints are known", seconds=ENOUGH_SECONDS)


async def tagged(picker: Picker) -> None:
    """Wait until the picker counts the endpoints with each accelerator."""

    async def same() -> bool:
        shown = (await picker.metrics()).get("llm_d_epp_accelerator_ready_endpoints", {})
        counted = {label: int(count) for labels, count in shown.items() for label in labels}
        return counted.get("accelerator=h100") == PODS // 4 and counted.get("accelerator=t4") == PODS - PODS // 4

    await until(same, "all endpoints have the accelerators of their nodes", seconds=ENOUGH_SECONDS)


@pytest.mark.timeout(1200)
async def test_500_pods_of_kwok_are_found_tagged_and_followed_through_a_rolling_update(space, pages, tmp_path):
    if KWOK.missing(KWOK.directory()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(KWOK.remedy(KWOK.directory()))
    user = await space.user("picker", PICKER_ROLE, HARDWARE_ROLE)
    async with kwok(space.cluster, tmp_path):
        for number in range(NODES):
            labels = H100 if number % 4 == 0 else T4
            await space.node(node_of(space, str(number)), labels=labels, annotations=FAKE)
        await space.pool(ports=(pages,))
        await make(space, "old", range(PODS))
        async with picker_as(user.kubeconfig(tmp_path / "kubeconfig"), *pool_of(space)) as picker:
            old, new = ([f"{version}-{number}" for number in range(PODS)] for version in ("old", "new"))
            await has(picker, *old)
            await tagged(picker)
            for first in range(0, PODS, BATCH):
                batch = range(first, first + BATCH)
                await make(space, "new", batch)
                await has(picker, *old[first:], *new[: batch.stop])
                await end(space, "old", batch)
                await has(picker, *old[batch.stop :], *new[: batch.stop])
            await tagged(picker)
