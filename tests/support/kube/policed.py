# SPDX-License-Identifier: Apache-2.0
"""A pool under objectives and rewrites, and what they do to requests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from tests.support.kube import manifests as write
from tests.support.kube.client import Manifest
from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.pickers import PATIENCE_SECONDS, Picker, picker_in
from tests.support.kube.space import Space
from tests.support.waiting import read_until
from tests.support.world import FAST, question

OBJECTIVE = "x-llm-d-inference-objective"
DROPPED = "x-llm-d-request-dropped-reason"


@dataclass
class PolicedPool:
    """A pool with one server that has the models `blue` and `green`, and its picker."""

    space: Space
    fleet: Fleet
    picker: Picker
    http: aiohttp.ClientSession

    @property
    def server(self) -> str:
        return f"http://{self.fleet.servers['a-rank-0'].address}"

    async def send(self, model: str | None, **headers: str) -> tuple[int, Mapping[str, str], dict]:
        """Send one chat request; return status, headers and content of the answer."""
        url = f"{self.picker.url}/v1/chat/completions"
        async with self.http.post(url, json=question(model=model), headers=headers) as answer:
            return answer.status, answer.headers, await answer.json()

    async def status(self, objective: str = "") -> int:
        """Send one request for `blue`; return the status of the answer."""
        status, headers, content = await self.send("blue", **({OBJECTIVE: objective} if objective else {}))
        if status == 429:
            assert headers[DROPPED] == "rejected-saturated"
            assert content["error"]["code"] == "rate_limit_exceeded"
        return status

    async def target(self, model: str | None = "canary") -> str:
        """Send one request; return the model that the server was asked for, empty where it has no such model."""
        status, _, content = await self.send(model)
        if status == 404:
            return ""
        assert status == 200, content
        async with self.http.get(f"{self.server}/sim/requests") as answer:
            asked = (await answer.json())[-1]["model"]
        assert content["model"] == (model or asked)
        return asked

    async def asks_for(self, target: str, model: str = "canary", seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until requests for a model are for that one."""
        what = f"requests for {model} are for {target or 'what they say'}"
        await read_until(lambda: self.target(model), lambda found: found == target, what, seconds)

    async def has_status(self, wanted: int, objective: str) -> None:
        """Wait until requests with that objective are answered so."""
        what = f"{objective} is answered with {wanted}"
        await read_until(lambda: self.status(objective), lambda found: found == wanted, what, PATIENCE_SECONDS)

    async def busy(self, waiting: int) -> None:
        """Let so many requests wait at the server."""
        async with self.http.post(f"{self.server}/sim/occupy", json={"waiting": waiting}) as answer:
            assert answer.status == 200, await answer.text()

    async def rewrite(self, name: str, *rules: Manifest, **more: str) -> Manifest:
        return await self.space.apply(write.rewrite(name, pool="pool", rules=rules, **more))

    async def objective(self, name: str, priority: int | None, *, pool: str = "pool", **more: str) -> Manifest:
        return await self.space.apply(write.objective(name, pool=pool, priority=priority, **more))

    async def not_in_effect(self, *kept: int) -> list[dict]:
        """Wait until `/healthz` has so many objects that are not in effect, each with so many earlier versions."""

        def are_those(answer: tuple[int, dict]) -> bool:
            return [each["kept"] for each in answer[1]["not_in_effect"]] == list(kept)

        _, health = await read_until(self.picker.health, are_those, f"/healthz has {kept}", PATIENCE_SECONDS)
        return health["not_in_effect"]


@asynccontextmanager
async def policed_pool(space: Space, directory: Path) -> AsyncIterator[PolicedPool]:
    """Run a server, its pool and a picker in a namespace."""
    profile = msgspec.structs.replace(FAST, lora_adapters=("blue", "green"), max_lora=2)
    async with fleet_in(space, profile=profile) as fleet, aiohttp.ClientSession() as http:
        await fleet.start("a")
        await space.pool(ports=fleet.ports)
        async with picker_in(space, directory) as picker:
            await picker.uses("a-rank-0")
            yield PolicedPool(space, fleet, picker, http)
