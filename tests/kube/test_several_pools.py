# SPDX-License-Identifier: Apache-2.0
"""One process for several InferencePools: each has a port, a configuration and metrics of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.settings import GatewaySettings
from tests.support.commands import Command, command, outcome
from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.pickers import QUICK
from tests.support.kube.space import Space
from tests.support.kube.users import PICKER_ROLE
from tests.support.ports import reserved_ports
from tests.support.serving import metrics_on
from tests.support.waiting import until
from tests.support.world import MODEL, client_of

TEAM = {"team": "search"}
BROKEN = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: no-such-plugin}]\n"
RANDOM = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
"""


def reference(port: int) -> dict[str, Any]:
    """The part of an InferencePool that names the port of its picker."""
    return {"endpointPickerRef": {"name": "pickers", "port": {"number": port}}}


@dataclass
class Process:
    """The picker, as its operator sees it."""

    command: Command
    metrics_port: int
    admin_port: int

    async def health(self) -> tuple[int, dict[str, Any]]:
        address = f"http://127.0.0.1:{self.metrics_port}/healthz"
        async with aiohttp.ClientSession() as http, http.get(address) as answer:
            return answer.status, await answer.json()

    async def pools(self) -> dict[str, bool]:
        """Return which pools there are, and whether each is ready."""
        _, health = await self.health()
        return {name: state["ready"] for name, state in health["pools"].items()}

    async def has(self, pools: Mapping[str, bool]) -> None:
        async def same() -> bool:
            return await self.pools() == pools

        await until(same, f"the pools are {pools}", seconds=60)


@asynccontextmanager
async def process_in(space: Space, directory: Path, *flags: str) -> AsyncIterator[Process]:
    user = await space.user("picker", PICKER_ROLE)
    kubeconfig = user.kubeconfig(directory / "kubeconfig")
    async with AsyncExitStack() as stack:
        health, metrics, admin, unnamed = stack.enter_context(reserved_ports(4))
        where = (f"--grpc-health-port={health}", f"--metrics-port={metrics}", f"--admin-port={admin}")
        started = command(
            "serve", *where, f"--grpc-port={unnamed}", *QUICK, f"--pool-namespace={space.namespace}", *flags,
            "--decision-sample-rate=1", KUBECONFIG=str(kubeconfig),
        )  # fmt: skip
        process = await stack.enter_async_context(started)
        await process.says('"pools":[')
        yield Process(process, metrics, admin)


@asynccontextmanager
async def gateway_to(port: int) -> AsyncIterator[str]:
    settings = GatewaySettings(listen_port=0, picker_address=f"127.0.0.1:{port}", picker_tls=True)
    async with await EnvoyProcess.start(settings) as envoy:
        yield f"http://{envoy.address}"


async def asked(url: str) -> str:
    """Send a request; return the name of the server that answered."""
    async with client_of(url) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=2
        )
        return raw.headers["x-sim-server"]


async def test_each_pool_answers_at_the_port_that_it_names(space, tmp_path):
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(fleet_in(space))
        await fleet.start("a", labels={"app": "chat"})
        await fleet.start("b", labels={"app": "code"})
        chat, code = stack.enter_context(reserved_ports(2))
        await space.pool("chat", ports=fleet.ports, selector={"app": "chat"}, **reference(chat))
        await space.pool("code", ports=fleet.ports, selector={"app": "code"}, **reference(code))
        process = await stack.enter_async_context(process_in(space, tmp_path, "--pool-name=chat", "--pool-name=code"))
        assert await process.pools() == {"chat": True, "code": True}
        to_chat = await stack.enter_async_context(gateway_to(chat))
        to_code = await stack.enter_async_context(gateway_to(code))
        assert [await asked(to_chat), await asked(to_chat), await asked(to_code)] == ["a-rank-0"] * 2 + ["b-rank-0"]

        page = await metrics_on(process.metrics_port)
        requests = page["llm_d_epp_request_total"]
        by_pool = {
            pool: sum(value for labels, value in requests.items() if f"inference_pool={pool}" in labels)
            for pool in ("chat", "code")
        }
        assert by_pool == {"chat": 2, "code": 1}
        assert len(page["process_cpu_seconds_total"]) == 1
        lists = page["llm_d_epp_kubernetes_lists_total"]
        assert [value for labels, value in lists.items() if any("inferenceobjectives" in each for each in labels)]

        states = f"http://127.0.0.1:{process.metrics_port}/debug/plugins/state"
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{states}?pool=code") as answer:
                shown = await answer.json()
            assert shown["pool"] == "code"
            assert "approx-prefix-cache-producer" in shown["plugins"]
            async with http.get(states) as answer:
                assert (answer.status, (await answer.json())["error"]["message"]) == (
                    404,
                    "pool is missing: write one of chat, code",
                )
            async with http.get(f"{states}?pool=code", headers={"Host": "attacker.example"}) as answer:
                assert answer.status == 403

        admin = f"http://127.0.0.1:{process.admin_port}/pools/code"
        exit_code, explained = await outcome("explain", "--last", "--admin", admin)
        assert exit_code == 0
        assert any("b-rank-0" in line for line in explained.out)


async def test_flood_of_one_pool_is_refused_there_and_served_in_the_other(space, tmp_path):
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(fleet_in(space))
        await fleet.start("a", labels={"app": "chat"})
        chat, code = stack.enter_context(reserved_ports(2))
        for name, port in (("chat", chat), ("code", code)):
            await space.pool(name, ports=fleet.ports, selector={"app": "chat"}, **reference(port))
        flags = ("--pool-name=chat,code", "--max-streams=4")
        process = await stack.enter_async_context(process_in(space, tmp_path, *flags))
        to_chat = await stack.enter_async_context(gateway_to(chat))
        to_code = await stack.enter_async_context(gateway_to(code))
        completion = {"model": MODEL, "prompt": "hello", "max_tokens": 2}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

            async def status(url: str) -> int:
                async with http.post(f"{url}/v1/completions", json=completion) as answer:
                    await answer.read()
                    return answer.status

            async def flood() -> list[int]:
                return await asyncio.gather(*(status(to_chat) for _ in range(100)))

            flooding = asyncio.create_task(flood())
            assert {await status(to_code) for _ in range(10)} == {200}
            assert set(await flooding) == {200, 503}
        _, health = await process.health()
        assert health["pools"]["chat"]["budgets_used_up"]["streams"]["limit"] == 4
        assert "budgets_used_up" not in health["pools"]["code"]


async def test_pools_come_and_go_and_a_broken_configuration_is_that_of_one_pool(space, tmp_path):
    configurations = tmp_path / "pools"
    configurations.mkdir()
    everywhere = tmp_path / "epp.yaml"
    everywhere.write_text(RANDOM)
    (configurations / "code.yaml").write_text(BROKEN)
    flags = ("--pool-selector=team=search", f"--config-file={everywhere}", f"--pool-config-dir={configurations}")
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(fleet_in(space))
        await fleet.start("a", labels={"app": "chat"})
        chat, code, other = stack.enter_context(reserved_ports(3))
        process = await stack.enter_async_context(process_in(space, tmp_path, *flags))
        assert await process.health() == (200, {**(await process.health())[1], "ready": True, "pools": {}})

        await labelled(space, "chat", chat, fleet.ports)
        await process.has({"chat": True})
        to_chat = await stack.enter_async_context(gateway_to(chat))
        assert await asked(to_chat) == "a-rank-0"

        await labelled(space, "code", code, fleet.ports)
        await process.has({"chat": True, "code": False})
        await until(lambda: "no-such-plugin" in str(process.command), "the log names the plugin", seconds=60)
        (line,) = [line for line in process.command.err if '"pool not served"' in line]
        assert '"pool":"code"' in line
        (configurations / "code.yaml").unlink()
        await process.has({"chat": True, "code": True})

        await labelled(space, "twin", chat, fleet.ports)
        await process.has({"chat": True, "code": True, "twin": False})
        status, health = await process.health()
        assert status == 200
        assert "is used by InferencePool chat" in health["pools"]["twin"]["reason"]
        await labelled(space, "twin", other, fleet.ports)
        await process.has({"chat": True, "code": True, "twin": True})

        (configurations / "chat.yaml").write_text(BROKEN)

        async def refused() -> bool:
            return bool((await process.health())[1]["pools"]["chat"]["config"]["refused"])

        await until(refused, "the new configuration of a pool is refused", seconds=60)
        assert await asked(to_chat) == "a-rank-0"
        (configurations / "chat.yaml").write_text(RANDOM.replace("default", "chosen"))

        async def applied() -> bool:
            return (await process.health())[1]["pools"]["chat"]["config"] == {"generation": 2, "refused": None}

        await until(applied, "a configuration of its own is in effect", seconds=60)

        await space.delete(write.pool("code", namespace=space.namespace))
        await process.has({"chat": True, "twin": True})
        assert await asked(to_chat) == "a-rank-0"


async def labelled(space: Space, name: str, port: int, ports: tuple[int, ...]) -> None:
    """Create or change a pool that the process of `--pool-selector=team=search` serves."""
    pool = write.pool(name, namespace=space.namespace, ports=ports, selector={"app": "chat"}, **reference(port))
    pool["metadata"]["labels"] = TEAM
    await space.apply(pool)
