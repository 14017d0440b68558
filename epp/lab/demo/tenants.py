# SPDX-License-Identifier: Apache-2.0
"""The demo of two tenants that share servers: one of them sends more than these can serve, again and again."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum

import aiohttp

from epp.config import LoadedConfig, load_text
from epp.framework.headers import FAIRNESS_ID
from epp.lab.demo.pool import PRESETS
from epp.lab.demo.servers import ModelServer, ServerSpec, model_servers
from epp.pool.discovery import StaticDiscovery, Target
from epp.runtime.addresses import parse_host_port

STEADY, FLOOD = "steady", "flood"
PRESET = "t4"
_SERVERS = 2
_STEADY_RATE = 1.0
"""Requests a second of a tenant that does not flood."""
_OUTPUT_TOKENS = 48
_HEADER, _ = FAIRNESS_ID
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 4}}
- {type: round-robin-fairness-policy}
- {type: active-request-scorer}
- {type: accelerator-data-source}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 3s
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}
"""


class Phase(Enum):
    """What the tenants do."""

    CALM = "both tenants send little: the servers have room"
    FLOODED = "flood sends more than the servers can serve: its own requests wait, and get 429 after 3 s"


def tenant_config() -> LoadedConfig:
    """Return a configuration in which each tenant has its turn, and a server takes four requests at once."""
    return load_text(CONFIG, "demo configuration")


@asynccontextmanager
async def tenant_servers(model: str) -> AsyncIterator[tuple[ModelServer, ...]]:
    """Run the servers that both share until the block ends; raises ServerFailedError."""
    specs = [ServerSpec(PRESET, f"{PRESET}-{number}") for number in range(1, _SERVERS + 1)]
    async with model_servers(specs, model) as servers:
        yield servers


def tenant_discovery(servers: Iterable[ModelServer]) -> StaticDiscovery:
    """Return the pool of these servers."""
    places = [(server.name, parse_host_port(server.address)) for server in servers]
    return StaticDiscovery(
        [Target(name, place.host, place.port, accelerator=PRESETS[PRESET]) for name, place in places]
    )


class TwoTenants:
    """Clients of both tenants; together they send at most `requests_per_second`, and do not wait for answers."""

    def __init__(self, url: str, model: str, requests_per_second: float) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._steady = min(_STEADY_RATE, requests_per_second / 2)
        self._flood = requests_per_second - self._steady
        self.phase = Phase.CALM

    async def run(self, phase_seconds: float, phases: Sequence[Phase] = tuple(Phase)) -> None:
        """Send, and go through the phases, until cancelled."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as clients,
        ):
            for tenant in (STEADY, FLOOD):
                clients.create_task(self._send(session, tenant, clients))
            for phase in itertools.cycle(phases):
                self.phase = phase
                await asyncio.sleep(phase_seconds)

    def _rate(self, tenant: str) -> float:
        return self._flood if tenant == FLOOD and self.phase is Phase.FLOODED else self._steady

    async def _send(self, session: aiohttp.ClientSession, tenant: str, clients: asyncio.TaskGroup) -> None:
        generator = random.Random(tenant)  # noqa: S311  not for secrets
        for number in itertools.count():
            clients.create_task(self._ask(session, tenant, number))
            await asyncio.sleep(generator.uniform(0.5, 1.5) / self._rate(tenant))

    async def _ask(self, session: aiohttp.ClientSession, tenant: str, number: int) -> None:
        """Send a request; the table shows what it comes to."""
        messages = [{"role": "user", "content": f"{tenant} {number}: where is my parcel?"}]
        body = {"model": self._model, "messages": messages, "max_tokens": _OUTPUT_TOKENS}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(self._url, json=body, headers={_HEADER: tenant}) as response:
                await response.read()
