# SPDX-License-Identifier: Apache-2.0
"""A picker and an Envoy as one process, `epp gateway`, with its health and its metrics."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import Command, command
from tests.support.serving import health_on, metrics_on
from tests.support.waiting import until


@dataclass(frozen=True)
class Gateway:
    process: Command
    url: str
    metrics_port: int

    async def health(self) -> tuple[int, dict]:
        """The status and the fields."""
        return await health_on(self.metrics_port)

    async def not_in_effect(self, count: int) -> list[dict]:
        """Wait until so many objects or files are not in effect; return what `/healthz` says of them."""
        found: list[dict] = []

        async def counted() -> bool:
            found[:] = (await self.health())[1]["not_in_effect"]
            return len(found) == count

        await until(counted, f"{count} things are not in effect")
        return found

    async def metrics(self) -> dict[str, dict[frozenset[str], float]]:
        """Name of each sample to its labels and values."""
        return await metrics_on(self.metrics_port)

    async def config_metrics(self) -> dict[str, float]:
        """What the page says of the configuration, without `llm_d_epp_config_`."""
        prefix = "llm_d_epp_config_"
        return {
            name.removeprefix(prefix): sum(samples.values())
            for name, samples in (await self.metrics()).items()
            if name.startswith(prefix) and not name.endswith("_created")
        }


@contextlib.asynccontextmanager
async def gateway_with(config: Path) -> AsyncIterator[Gateway]:
    async with gateway_of(f"--config-file={config}") as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def gateway_of(*given: str, **environment: str) -> AsyncIterator[Gateway]:
    """Run a gateway with these flags and variables, on free ports."""
    flags = ("--listen=127.0.0.1:0", "--metrics-port=0", "-v=2")
    async with command("gateway", *flags, *given, **environment) as process:
        line = await process.says("listening on")
        page = line.partition("metrics on ")[2].partition(";")[0]
        yield Gateway(process, line.split()[2], int(page.rpartition(":")[2]))
