# SPDX-License-Identifier: Apache-2.0
"""A gateway in front of genuine engines, a client of it, and what the picker knows of the engines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from epp.framework.snapshot import IN_FLIGHT, RUNNING, WAITING, Column
from epp.lab.gateway.local import LocalGateway
from tests.support.waiting import until
from tests.support.world import column_of


@dataclass
class World:
    """A gateway, its client, and the engines, each with its `address`."""

    gateway: LocalGateway
    client: AsyncOpenAI
    servers: Sequence[Any]

    def column(self, column: Column) -> dict[str, float]:
        """Return the column by name of the endpoint."""
        return column_of(self.gateway, column)

    async def idle(self) -> None:
        """Wait until the picker and all engines report that no request is under way."""
        busy = (IN_FLIGHT, RUNNING, WAITING)
        await until(lambda: all(v == 0 for each in busy for v in self.column(each).values()), "all is idle", 60)
