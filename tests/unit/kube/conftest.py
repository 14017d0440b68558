# SPDX-License-Identifier: Apache-2.0
"""A server of lists and watches, access to it, and a watch."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from epp.framework import ManualClock, SystemClock
from epp.kube.access import KubeApi
from epp.kube.cluster import Cluster
from epp.kube.watched import Watched
from epp.runtime.supervisor import Supervisor
from tests.support.kube.fake_api import FakeApi
from tests.support.kube.kube_server import WIDGETS, KubeServer, access_to, kube_server


class Hasty(random.Random):
    """Makes pauses a hundred times as short."""

    def uniform(self, a: float, b: float) -> float:
        return super().uniform(a, b) / 100


def color_of(document) -> str:
    color = document["spec"]["color"]
    if color in {5, None}:
        raise ValueError(f"spec.color is {color!r}: write a string")
    return color


@pytest.fixture
def fake_api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def cluster(fake_api) -> AsyncIterator[Cluster]:
    """Watches of the fake API server."""
    supervisor = Supervisor()
    cluster = Cluster(fake_api, clock=SystemClock(), supervisor=supervisor)
    yield cluster
    await cluster.close()
    await supervisor.stop()
    assert not supervisor.tasks


@pytest.fixture
async def server() -> AsyncIterator[KubeServer]:
    async with kube_server() as server:
        yield server


@pytest.fixture
async def api(server, tmp_path) -> AsyncIterator[KubeApi]:
    async with access_to(server, tmp_path) as api:
        yield api


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def watched(api, clock) -> Watched[str]:
    return Watched(api, WIDGETS, color_of, clock=clock, namespace="ns", generator=Hasty())


@pytest.fixture
async def start(watched) -> AsyncIterator[Callable[[], None]]:
    """Begin to watch: `start()`."""
    running: list[asyncio.Task[None]] = []
    yield lambda: running.append(asyncio.create_task(watched.run()))
    assert not any(task.done() for task in running), "the task ended"
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
