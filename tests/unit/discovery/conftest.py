# SPDX-License-Identifier: Apache-2.0
"""Pools and name servers that tests can look into and change."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import asynccontextmanager

import pytest

from epp.framework import Endpoint


class RecordingPool:
    """Keeps what it was given last."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.replaced = 0

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = list(endpoints)
        self.replaced += 1

    @property
    def hostports(self) -> dict[str, str]:
        return {endpoint.name: endpoint.hostport for endpoint in self.endpoints}


class Names:
    """A name server: a table that may change between questions."""

    def __init__(self, **table: Sequence[str]) -> None:
        self.table = dict(table)

    async def __call__(self, host: str) -> Sequence[str]:
        try:
            return self.table[host]
        except KeyError:
            raise OSError(f"{host}: name not known") from None


@pytest.fixture
def pool() -> RecordingPool:
    return RecordingPool()


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def following():
    """Follow a discovery's source until the end of the block."""

    @asynccontextmanager
    async def follow(discovery, pool):
        task = asyncio.create_task(discovery.follow(pool))
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    return follow
