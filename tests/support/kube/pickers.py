# SPDX-License-Identifier: Apache-2.0
"""A picker in its own process, that logs in to the cluster as a user with a Role of pickers, behind an Envoy."""

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.settings import GatewaySettings
from tests.support.commands import Command, command
from tests.support.kube.space import Space
from tests.support.kube.users import PICKER_ROLE
from tests.support.ports import reserved_ports
from tests.support.serving import health_on, metrics_on
from tests.support.waiting import read_until
from tests.support.world import MODEL, client_of, question

QUICK = ("--refresh-prometheus-metrics-interval=20ms", "--drain-quiet-period=10ms", "--metrics-endpoint-auth=false")
PATIENCE_SECONDS = 60.0
"""More than any change takes to have effect, except after the API server was away."""


@dataclass
class Picker:
    """A picker, and what an operator and a client see of it."""

    command: Command
    url: str
    """The address of Envoy."""
    metrics_port: int
    health_port: int

    async def endpoints(self) -> dict[str, bool]:
        """Return the names of all endpoints, and whether each can be reached."""
        shown = (await metrics_on(self.metrics_port)).get("llm_d_epp_endpoint_up", {})
        return {
            label.removeprefix("model_server_endpoint="): bool(up)
            for labels, up in shown.items()
            for label in labels
            if label.startswith("model_server_endpoint=")
        }

    async def uses(self, *names: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until these are the endpoints, and all of them can be reached."""
        wanted = dict.fromkeys(names, True)
        await read_until(self.endpoints, lambda found: found == wanted, f"the endpoints are {names}", seconds)

    async def knows(self, count: int, resource: str = "pods") -> None:
        """Wait until so many objects of a resource are in effect."""

        def is_there(metrics: dict[str, dict[frozenset[str], float]]) -> bool:
            shown = metrics.get("llm_d_epp_kubernetes_objects", {})
            return any(f"resource={resource}" in labels and value == count for labels, value in shown.items())

        await read_until(self.metrics, is_there, f"{count} {resource} are in effect", PATIENCE_SECONDS)

    async def lists(self, resource: str) -> float:
        """Return how often all objects of a resource were listed."""
        shown = (await self.metrics())["llm_d_epp_kubernetes_lists_total"]
        return sum(value for labels, value in shown.items() if f"resource={resource}" in labels)

    async def metrics(self) -> dict[str, dict[frozenset[str], float]]:
        """Return the samples of each name by labels."""
        return await metrics_on(self.metrics_port)

    async def health(self) -> tuple[int, dict]:
        """Return the status and the content of `/healthz`."""
        return await health_on(self.metrics_port)

    async def ask(self, prompt: str = "hello", **more) -> str:
        """Send one chat request; return the name of the server that answered."""
        async with client_of(self.url) as client:
            raw = await client.chat.completions.with_raw_response.create(**question(prompt), **more)
            return raw.headers["x-sim-server"]

    async def refusal(self) -> tuple[int, str | None]:
        """Send one chat request; return the status of the answer and the reason of the picker."""
        url = f"{self.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=question()) as answer:
            return answer.status, answer.headers.get("x-llm-d-request-dropped-reason")

    async def cached(self, prompt: str = "a prompt of many blocks " * 200) -> str:
        """Send the prompt; return how much of it the picker, with `--decision-headers`, takes to be in a cache."""
        chat = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
        async with aiohttp.ClientSession() as http, http.post(f"{self.url}/v1/chat/completions", json=chat) as answer:
            assert answer.status == 200
            (share,) = re.findall(r"\d+%(?= cached)", answer.headers["x-epp-reason"])
            return share

    async def answers(self, requests: int = 12) -> set[str]:
        """Send requests with prompts of no common prefix; return the names of the servers that answered."""
        return {await self.ask(secrets.token_hex(16)) for _ in range(requests)}


@asynccontextmanager
async def picker_in(
    space: Space, directory: Path, *flags: str, role: dict = PICKER_ROLE, ready: bool = True, **environment: str
) -> AsyncIterator[Picker]:
    """Run a picker and an Envoy; the picker of the pool named `pool` if no flags are given."""
    user = await space.user("picker", role)
    kubeconfig = user.kubeconfig(directory / "kubeconfig")
    async with picker_as(kubeconfig, *(flags or pool_of(space)), ready=ready, **environment) as picker:
        yield picker


def pool_of(space: Space, name: str = "pool") -> tuple[str, ...]:
    """Return the flags that name a pool."""
    return (f"--pool-name={name}", f"--pool-namespace={space.namespace}")


@asynccontextmanager
async def picker_as(kubeconfig: Path, *flags: str, ready: bool = True, **environment: str) -> AsyncIterator[Picker]:
    """Run a picker with that access to the cluster, and an Envoy."""
    async with AsyncExitStack() as stack:
        grpc_port, health_port, metrics_port = stack.enter_context(reserved_ports(3))
        where = (f"--grpc-port={grpc_port}", f"--grpc-health-port={health_port}", f"--metrics-port={metrics_port}")
        process = await stack.enter_async_context(
            command("serve", *where, *QUICK, *flags, KUBECONFIG=str(kubeconfig), **environment)
        )
        if ready:
            await process.says('"msg":"ready"')
        gateway = GatewaySettings(listen_port=0, picker_address=f"127.0.0.1:{grpc_port}", picker_tls=True)
        async with await EnvoyProcess.start(gateway, wait_for_picker=ready) as envoy:
            yield Picker(process, f"http://{envoy.address}", metrics_port, health_port)
