# SPDX-License-Identifier: Apache-2.0
"""A picker and an Envoy as one process, `epp gateway`, with its health and its metrics."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.support.commands import Command, command
from tests.support.serving import health_on, metrics_on
from tests.support.waiting import read_until


@dataclass(frozen=True)
class Gateway:
    process: Command
    url: str
    metrics_port: int

    async def health(self) -> tuple[int, dict]:
        """The status and the fields."""
        return await health_on(self.metrics_port)

    async def shows(self, accept: Callable[[dict], object], what: str, seconds: float = 20.0) -> dict:
        """Wait until the fields of `/healthz` are accepted; return them."""
        return (await read_until(self.health, lambda answer: accept(answer[1]), what, seconds))[1]

    async def not_in_effect(self, count: int) -> list[dict]:
        """Wait until so many objects or files are not in effect; return what `/healthz` says of them."""
        health = await self.shows(lambda fields: len(fields["not_in_effect"]) == count, f"{count} are not in effect")
        return health["not_in_effect"]

    async def metrics(self) -> dict[str, dict[frozenset[str], float]]:
        """Name of each sample to its labels and values."""
        return await metrics_on(self.metrics_port)

    async def total(self, name: str, label: str = "") -> float:
        """Sum of the samples of a metric, `llm_d_epp_<name>`, or of those with a label such as `outcome=2xx`."""
        samples = (await self.metrics()).get(f"llm_d_epp_{name}", {})
        return sum(value for labels, value in samples.items() if not label or label in labels)

    async def post(self, path: str, body: object, **headers: str) -> aiohttp.ClientResponse:
        """Send a request on a connection of its own; return the response, which has been read."""
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        url = f"{self.url}{path}"
        async with aiohttp.ClientSession() as http, http.post(url, headers=headers, **content) as response:
            await response.read()
            return response

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
        page = (await process.says("listening on")).partition("metrics on ")[2].partition(";")[0]
        yield Gateway(process, await process.url(), int(page.rpartition(":")[2]))
