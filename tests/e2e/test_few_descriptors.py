# SPDX-License-Identifier: Apache-2.0
"""More endpoints than file descriptors: polling takes turns, and whatever else needs descriptors finds some."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from epp.lab.sim.server import RunningSim, running
from tests.support.commands import PATIENCE_SECONDS, command, descriptors
from tests.support.config_files import endpoints_file, picker_config, replace, with_pool
from tests.support.serving import ANY_PORT, PLAIN, Served, destination_of, serving
from tests.support.transports import over_asyncio
from tests.support.waiting import until
from tests.support.world import FAST

CONFIG = picker_config("""
plugins: [{type: queue-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
""")
ENDPOINTS = 150
LIMIT = 128
QUICKLY = ("--drain-timeout=0s", "--refresh-prometheus-metrics-interval=50ms")


@pytest.fixture
async def sim() -> AsyncIterator[RunningSim]:
    """One server that listens on every address of this host."""
    async with running(FAST, "0.0.0.0") as sim:  # noqa: S104  endpoints need addresses of their own
        yield sim


def addresses(sim: RunningSim, count: int) -> list[str]:
    return [f"127.0.8.{number + 1}:{sim.port}" for number in range(count)]


async def all_reported(served: Served, pool: list[str]) -> bool:
    return len((await served.metrics()).get("llm_d_epp_per_endpoint_queue_size", {})) == len(pool)


async def assert_answers(served: Served, pool: list[str]) -> None:
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        async with served.health() as channel:
            status = (await HealthStub(channel).Check(HealthCheckRequest())).status
            assert status == HealthCheckResponse.SERVING
        async with served.channel() as channel:
            assert await destination_of(channel) in pool
        assert (await served.health_page())[1]["endpoints"] == len(pool)
        await until(lambda: all_reported(served, pool), "all endpoints have reported", PATIENCE_SECONDS)
        assert (await served.metrics())["llm_d_epp_ready_endpoints"] == {frozenset({"name=default"}): len(pool)}


def soft_and_hard_limit(pid: int) -> tuple[str, str]:
    limits = Path(f"/proc/{pid}/limits").read_text()
    found = re.search(r"\nMax open files +(\S+) +(\S+)", limits)
    assert found is not None
    return found[1], found[2]


async def test_pool_that_outgrows_the_descriptors_is_told_of_and_files_are_still_read(sim, tmp_path):
    pool = addresses(sim, ENDPOINTS)
    small, large = ({str(n): (address, {}) for n, address in enumerate(pool[:size])} for size in (2, ENDPOINTS))
    file = endpoints_file(tmp_path / "endpoints.yaml", **small)
    config = tmp_path / "config.yaml"
    replace(config, with_pool(CONFIG, file))
    async with serving(None, PLAIN, *QUICKLY, f"--config-file={config}", ulimit=f"-n {LIMIT}") as served:
        await assert_answers(served, pool[:2])
        assert not [line for line in served.command.err if "too few file descriptors" in line]
        endpoints_file(file, **large)
        told = json.loads(await served.command.says("too few file descriptors"))
        assert told["endpoints"] == ENDPOINTS
        assert (
            f"polling needs {ENDPOINTS} connections, but the limit of {LIMIT} file descriptors leaves"
            in told["problem"]
        )
        assert "raise the limit to 470 or more (ulimit -n, LimitNOFILE of a systemd unit)" in told["problem"]
        await assert_answers(served, pool)
        assert descriptors(served.command.pid) < LIMIT - 32
        assert not [line for line in served.command.err if "endpoint not read" in line]
        replace(config, with_pool(CONFIG.replace("queue-scorer", "kv-cache-utilization-scorer"), file))
        await served.command.says('"msg":"configuration applied"')
        await assert_answers(served, pool)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("serve", *ANY_PORT), '"msg":"ready"'), (("gateway", "--listen=127.0.0.1:0"), "listening on")],
)
async def test_soft_limit_is_raised_to_the_hard_one(sim, arguments, said):
    async with command(*arguments, f"--endpoints=127.0.0.1:{sim.port}", ulimit="-S -n 200") as picker:
        await picker.says(said)
        soft, hard = soft_and_hard_limit(picker.pid)
        assert soft == hard != "200"


@over_asyncio
async def test_more_idle_connections_than_descriptors_keep_no_gateway_out(sim):
    async with serving(sim, PLAIN, *QUICKLY, ulimit=f"-n {LIMIT}") as served, served.channel() as known:
        assert await destination_of(known) == sim.address
        idle = [await asyncio.open_connection("127.0.0.1", served.grpc_port) for _ in range(3 * LIMIT)]
        async with served.channel() as new:
            assert await destination_of(new) == sim.address
        assert await destination_of(known) == sim.address
        for _, writer in idle:
            writer.close()
