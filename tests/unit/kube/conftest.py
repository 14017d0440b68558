# SPDX-License-Identifier: Apache-2.0
"""A server of lists and watches, and access to it."""

from collections.abc import AsyncIterator

import pytest
from kube_server import KubeServer, access_to, kube_server

from epp.kube.access import KubeApi


@pytest.fixture
async def server() -> AsyncIterator[KubeServer]:
    async with kube_server() as server:
        yield server


@pytest.fixture
async def api(server, tmp_path) -> AsyncIterator[KubeApi]:
    async with access_to(server, tmp_path) as api:
        yield api
