# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server for all tests, a namespace for each, and servers of its own for those that break them."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kube.build_assets import ASSETS
from tests.support.kube.charts import Helm
from tests.support.kube.running import Cluster, running
from tests.support.kube.space import Space, space_in
from tests.support.ports import reserved_ports

TEST_SECONDS = 600
"""More than anything takes on a slow machine: servers start, and thousands of pods are made."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the programs where they are missing, in one line for all; fail it where CI is set."""
    directory = ASSETS.directory()
    if "programs" in getattr(item, "fixturenames", ()) and ASSETS.missing(directory):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(ASSETS.remedy(directory))


@pytest.fixture(scope="session")
def programs() -> Path:
    """Directory of kube-apiserver, etcd and helm."""
    return ASSETS.directory()


@pytest.fixture(scope="session")
def helm(programs) -> Helm:
    """Helm, and the charts that it renders."""
    return Helm(programs / "helm")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(programs, tmp_path_factory) -> AsyncIterator[Cluster]:
    """The cluster that tests share, with all definitions of `crds/`; no test may stop it."""
    async with running(programs, tmp_path_factory.mktemp("cluster")) as cluster:
        await cluster.install()
        yield cluster


@pytest.fixture
async def space(cluster) -> AsyncIterator[Space]:
    """A new namespace in the shared cluster."""
    async with space_in(cluster) as space:
        yield space


@pytest.fixture
async def own_cluster(programs, tmp_path_factory) -> AsyncIterator[Callable[..., object]]:
    """Start a cluster for this test alone: `await own_cluster("--watch-cache=false", crds=("inferencepools",))`."""
    async with AsyncExitStack() as stack:

        async def start(*flags: str, crds: tuple[str, ...] = ()) -> Cluster:
            """Run it with these flags of kube-apiserver, and with the definitions named, or all without a name."""
            cluster = await stack.enter_async_context(running(programs, tmp_path_factory.mktemp("cluster"), *flags))
            await cluster.install(*crds)
            return cluster

        yield start


@pytest.fixture
async def pages() -> AsyncIterator[int]:
    """The port of a program that has metrics for every pod: one simulated server is too slow for the polls of 2,000."""
    program = Path(__file__).with_name("pages.py")
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=PIPE)
    try:
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
def health_port() -> Iterator[int]:
    with reserved_ports(1) as (port,):
        yield port
