# SPDX-License-Identifier: Apache-2.0
"""A real API server with Istio's control plane beside it, and a namespace for each test whose pods run as processes."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateways import istio
from tests.gateways.build_assets import ASSETS
from tests.gateways.controllers import controllers_of
from tests.gateways.kubelet import NODE
from tests.gateways.place import Place, place_in
from tests.kube.build_assets import ASSETS as KUBE_ASSETS
from tests.support.kube import manifests as write
from tests.support.kube.charts import Helm
from tests.support.kube.processes import Process
from tests.support.kube.running import Cluster, running

TEST_SECONDS = 600

pytest.register_assert_rewrite("tests.gateways.features")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One loop for all: places that tests share have clients.
    in_one_loop = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        item.add_marker(in_one_loop, append=False)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs programs or addresses that are missing; fail it where CI is set."""
    if item.path.is_relative_to(Path(__file__).parent) and (remedy := _missing()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(remedy)


def _missing() -> str:
    for assets in (KUBE_ASSETS, ASSETS):
        if assets.missing(directory := assets.directory()):
            return assets.remedy(directory)
    with socket.socket() as probe:
        try:
            probe.bind(("10.8.0.1", 0))
        except OSError:
            return "pods have no addresses here: run `make test-gateways`, which makes a network for them"
    return ""


@dataclass(frozen=True)
class Mesh:
    """A cluster with Istio."""

    cluster: Cluster
    helm: Helm
    istiod: Process


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mesh(tmp_path_factory) -> AsyncIterator[Mesh]:
    """The cluster that all tests share."""
    directory = tmp_path_factory.mktemp("cluster")
    programs, place = KUBE_ASSETS.directory(), ASSETS.directory()
    helm = Helm(programs / "helm")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(programs, directory))
        await cluster.define(*istio.definitions_in(place))
        async with cluster.client() as admin:
            await admin.apply(write.node(NODE))
        await stack.enter_async_context(controllers_of(cluster, place / "kube-controller-manager", directory))
        process = await stack.enter_async_context(istio.istiod(cluster, place, helm, directory))
        yield Mesh(cluster, helm, process)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def example(mesh, tmp_path_factory) -> AsyncIterator[Place]:
    """The example as shipped, with three model servers, for tests that change nothing."""
    async with place_in(mesh, tmp_path_factory.mktemp("example")) as place:
        await place.open_example(count=3)
        yield place


@pytest_asyncio.fixture(loop_scope="session")
async def place(mesh, tmp_path) -> AsyncIterator[Place]:
    """A new namespace, with nothing in it."""
    async with place_in(mesh, tmp_path) as place:
        yield place
