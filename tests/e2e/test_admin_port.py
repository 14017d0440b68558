# SPDX-License-Identifier: Apache-2.0
"""`epp serve --admin-port` from outside: quotas shown and changed while requests come, and who may do that."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import pytest
import yaml

from epp.framework.request import DEFAULT_FLOW
from epp.lab.sim.server import RunningSim
from tests.support.commands import outcome
from tests.support.config_files import picker_config
from tests.support.exchanges import BODY
from tests.support.kube.manifests import manifest
from tests.support.serving import ANY_PORT, PLAIN, Exchange, Served, answer, ask, exchange, request, serving
from tests.support.waiting import read_until

WORKERS = "total.max.workers.limit"
JSON = {"Content-Type": "application/json"}
TOKEN = "a-token-of-this-test-alone"  # noqa: S105  of this test alone
QUOTA = {"tenant": DEFAULT_FLOW, "total": {"concurrentRequests": 1}, "whenExceeded": "Refuse"}


class Admin:
    """A client of the admin port of a picker."""

    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self._http = http
        self._url = f"http://127.0.0.1:{port}"
        self.port = port

    async def get(self, path: str, **headers: str) -> tuple[int, dict]:
        async with self._http.get(f"{self._url}{path}", headers=headers) as found:
            return found.status, await found.json()

    async def adjust(self, quota: dict | None, query: str = "", **more: object) -> tuple[int, dict]:
        body = json.dumps({"tenant": DEFAULT_FLOW, "quota": quota, **more})
        async with self._http.post(f"{self._url}/api/quota/adjust{query}", data=body, headers=JSON) as found:
            return found.status, await found.json()

    async def used(self) -> float:
        _, shown = await self.get(f"/api/quota/{DEFAULT_FLOW}")
        return shown["use"][0]["used"]


def configured(path: Path, **parameters: object) -> str:
    """Write a configuration with these parameters of tenant-quotas; return its flag."""
    plugins = [{"type": "queue-scorer"}, {"type": "tenant-quotas", "parameters": parameters}]
    path.write_text(picker_config(yaml.safe_dump({"plugins": plugins})))
    return f"--config-file={path}"


@contextlib.asynccontextmanager
async def administered(sim: RunningSim, *flags: str) -> AsyncIterator[tuple[Served, Admin]]:
    quickly = (PLAIN, "--admin-port=0", "--drain-quiet-period=10ms")
    async with serving(sim, *quickly, *flags) as served, aiohttp.ClientSession() as http:
        yield served, Admin(http, int(served.admin.rpartition(":")[2]))


async def refused(channel: grpc.aio.Channel) -> int:
    """Send a request that is refused; return its status."""
    return (await (await request(channel, BODY)).read()).immediate_response.status.code


async def begun(channel: grpc.aio.Channel, sim: RunningSim) -> Exchange:
    """Send a request that is routed and not answered yet."""
    call = exchange(channel)
    assert await ask(call) == sim.address
    return call


async def test_tf_16_quota_is_tried_changed_and_taken_back_while_requests_come(sim, tmp_path):
    async with (
        administered(sim, configured(tmp_path / "c.yaml", quotas=[QUOTA])) as (served, admin),
        served.channel() as channel,
    ):
        calls = [await begun(channel, sim)]
        assert await refused(channel) == 429
        assert await admin.used() == 1
        (alert,) = (await served.health_page())[1]["quota_alerts"]
        assert (alert["tenant"], alert["limit"], alert["used"]) == (DEFAULT_FLOW, WORKERS, 1)

        larger = {"total": {"concurrentRequests": 2}}
        status, tried = await admin.adjust(larger, "?dryRun=true")
        assert (status, tried["applied"], tried["headroom"]) == (200, False, {WORKERS: 1})
        assert await refused(channel) == 429

        status, made = await admin.adjust(larger)
        assert (status, made["applied"], made["headroom"]) == (200, True, {WORKERS: 1})
        calls.append(await begun(channel, sim))
        assert await refused(channel) == 429

        status, tried = await admin.adjust(None, "?dryRun=true")
        assert (status, tried["error"]["type"]) == (200, "ScalingQuotaExceeded")
        status, kept = await admin.adjust(None)
        assert (status, kept["exceeded"]) == (409, [{"key": WORKERS, "used": 2, "limit": 1}])
        assert (await admin.adjust(None, force=True))[1]["quota"]["total"] == {"concurrentRequests": 1}
        assert await refused(channel) == 429

        for call in calls:
            await answer(call)

        await read_until(admin.used, lambda used: used == 0, "both requests are given back")
        await answer(await begun(channel, sim))
        counts = {frozenset({f"tenant={DEFAULT_FLOW}", f"resource={WORKERS}"}): 4.0}
        await read_until(
            served.metrics,
            lambda page: page.get("llm_d_epp_quota_refused_total") == counts,
            "four refused requests are on the metrics page",
        )


@pytest.mark.parametrize("named_by", ["paths", "--objects"])
async def test_tf_9_quotas_of_tensor_fusion_in_a_file_hold_and_follow_its_new_versions(sim, tmp_path, named_by):
    path = tmp_path / "quotas.yaml"

    def write(workers: object) -> None:
        spec = {"total": {"maxWorkers": workers}}
        quota = manifest("tensor-fusion.ai/v1", "GPUResourceQuota", "quota", DEFAULT_FLOW, spec=spec)
        path.write_text(yaml.safe_dump(quota))

    write(1)
    paths = {"paths": [str(path)]} if named_by == "paths" else {}
    flags = (
        configured(tmp_path / "c.yaml", gpuResourceQuotas=True, **paths),
        *([] if paths else [f"--objects={path}"]),
    )
    async with administered(sim, *flags) as (served, admin), served.channel() as channel:
        held = await begun(channel, sim)
        assert await refused(channel) == 429
        status, shown = await admin.get("/api/quota")
        assert status == 200
        assert [each["origin"] for each in shown["quotas"]] == [f"GPUResourceQuota {DEFAULT_FLOW}/quota"]
        write("many")
        await served.command.says("stays as it was")
        assert await refused(channel) == 429
        write(2)
        await read_until(
            lambda: admin.get(f"/api/quota/{DEFAULT_FLOW}"),
            lambda answer: answer[1]["use"][0]["limit"] == 2,
            "the new version counts",
        )
        await answer(await begun(channel, sim))
        await answer(held)


async def test_port_for_other_machines_needs_a_token_and_is_for_its_holders(sim, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    every = "--admin-host=0.0.0.0"
    async with administered(sim, every, f"--admin-token-file={token}") as (_, admin):
        assert (await admin.get("/api/quota"))[0] == 401
        assert (await admin.get("/api/quota", Authorization="Bearer wrong"))[0] == 401
        assert await admin.get("/api/quota", Authorization=f"Bearer {TOKEN}") == (200, {"quotas": []})
    flags = ("--admin-port=0", f"--admin-token-file={tmp_path}")
    code, said = await outcome("serve", PLAIN, f"--endpoints={sim.address}", *flags)
    assert (code, "cannot be read: it is a directory" in said.error) == (1, True)


async def test_without_a_port_there_is_none(sim):
    async with serving(sim, PLAIN, "--drain-quiet-period=10ms") as served:
        assert not served.admin
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{served.metrics_port}/api/quota") as no:
            assert no.status == 404


async def test_port_that_is_taken_is_said(sim):
    async with administered(sim) as (_, admin):
        flags = (PLAIN, f"--endpoints={sim.address}", f"--admin-port={admin.port}", *ANY_PORT)
        code, said = await outcome("serve", *flags)
        assert code == 1
        assert "the admin port cannot listen on 127.0.0.1" in said.error
