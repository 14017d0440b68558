# SPDX-License-Identifier: Apache-2.0
"""A picker of several processes behind a real Envoy."""

import asyncio
import itertools
import json
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from epp.lab.sim.server import running
from tests.support.commands import command, descriptors, memory_kib
from tests.support.config_files import picker_config
from tests.support.gateways import Gateway, gateway_of
from tests.support.load import Load, load_on
from tests.support.waiting import read_until, until
from tests.support.world import FAST, MODEL, pool_of

PLAIN = picker_config("""
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
plugins:
- type: queue-scorer
- type: max-score-picker
""")
PROMPT = "one of many equal beginnings " * 400


@asynccontextmanager
async def gateway_with_workers(*flags: str, servers: str = "ab", workers: int = 2):
    async with AsyncExitStack() as stack:
        named = {name: msgspec.structs.replace(FAST, name=name) for name in servers}
        sims = {name: await stack.enter_async_context(running(profile)) for name, profile in named.items()}
        pool = f"--endpoints={pool_of(sims)}"
        gateway = await stack.enter_async_context(gateway_of(pool, f"--workers={workers}", *flags))
        await serving(gateway, workers)
        yield gateway


def worker_pids(gateway: Gateway) -> dict[int, int]:
    """Process id of each worker, by its number."""
    found = {}
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            status = (environment.parent / "stat").read_text().rpartition(")")[2].split()
            variables = dict(line.partition(b"=")[::2] for line in environment.read_bytes().split(b"\0"))
        except OSError:  # it has ended, or is of another user
            continue
        if int(status[1]) == gateway.process.pid and b"EPP_WORKER" in variables and status[0] != "Z":
            found[int(variables[b"EPP_WORKER"].split(b",")[0])] = int(environment.parent.name)
    return found


async def serving(gateway: Gateway, count: int) -> None:
    def are_so(health: dict) -> bool:
        return health["workers"]["serving"] == count and health["workers"]["starting"] == 0

    await gateway.shows(are_so, f"{count} workers serve", seconds=60)


async def noticed(gateway: Gateway, count: int) -> None:
    """Wait until the main process knows of so many deaths of workers."""
    await gateway.shows(lambda health: health["workers"]["replaced"] == count, f"{count} workers are replaced", 60)


async def replaced(gateway: Gateway, count: int) -> None:
    await noticed(gateway, count)
    await serving(gateway, 2)


async def nothing_in_flight(gateway: Gateway) -> None:
    total = "inflight_requests"
    await read_until(lambda: gateway.total(total), lambda requests: requests == 0, "no request is in flight")


async def serve_on(gateway: Gateway, count: int = 20, **clients: int) -> Load:
    """Let clients, which take no failure, have so many answers."""
    async with load_on(gateway.url, **clients) as load:
        await load.answered_after(time.monotonic(), count)
    return load


async def ask(gateway: Gateway, prompt: str) -> aiohttp.ClientResponse:
    """Return an answer to a client with a connection of its own, so that any of Envoy's threads takes it."""
    response = await gateway.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert response.status == 200, await response.text()
    return response


async def ask_and_fail(gateway: Gateway) -> None:
    """Send requests, some of which may fail, until cancelled."""
    while True:
        await asyncio.gather(*(ask(gateway, f"{number}") for number in range(12)), return_exceptions=True)


async def placements(gateway: Gateway) -> object:
    """Return the state of the prefix index of the main process, which passes placements on as it hears of them."""
    url = f"http://127.0.0.1:{gateway.metrics_port}/debug/plugins/state"
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        plugins = (await response.json())["plugins"]
    return next(each["state"] for each in plugins.values() if each["type"] == "approx-prefix-cache-producer")


async def test_workers_decide_as_one_and_show_one_page():
    async with gateway_with_workers(servers="abc") as gateway:
        for number in range(8):
            prompt = f"{number} {PROMPT}"
            known = await placements(gateway)
            first = (await ask(gateway, prompt)).headers["x-sim-server"]
            changed = "the main process has passed the placement on"
            await read_until(lambda: placements(gateway), lambda found, known=known: found != known, changed)
            for end in range(3):
                assert (await ask(gateway, f"{prompt} {end}")).headers["x-sim-server"] == first
        assert await gateway.total("request_total") == 32
        load = await serve_on(gateway)
        assert await gateway.total("request_total") == 32 + len(load.answers)
        await nothing_in_flight(gateway)


async def test_admin_port_and_states_of_plugins_have_all_workers():
    async with gateway_with_workers("--admin-port=0") as gateway, aiohttp.ClientSession() as http:
        served_by = {}
        for number in range(12):
            prompt = f"{number} {PROMPT}"
            served_by[prompt] = (await ask(gateway, prompt)).headers["x-sim-server"]
        admin = json.loads(await gateway.process.says('"admin":'))["admin"]

        async def counted() -> bool:
            async with http.get(f"http://{admin}/api/endpoints") as response:
                endpoints = (await response.json())["endpoints"]
            served = sum(each["load"]["served"] for each in endpoints)
            return (served, sum(each["picks"] for each in endpoints)) == (12, 12)

        await until(counted, "the main process has the requests of both workers")
        for prompt, server in served_by.items():
            tried = {"body": {"model": MODEL, "prompt": prompt}}
            async with http.post(f"http://{admin}/api/simulate-schedule", json=tried) as response:
                assert (await response.json())["pick"]["endpoint"] == server
        states = f"http://127.0.0.1:{gateway.metrics_port}/debug/plugins/state"
        processes = []
        for query in ("", "?worker=1", "?worker=2"):
            async with http.get(states + query) as response:
                page = await response.json()
            assert "approx-prefix-cache-producer" in page["plugins"]
            processes.append(page["process"])
        assert processes == ["main", "worker 1", "worker 2"]
        async with http.get(f"{states}?worker=3") as response:
            assert response.status == 404
            assert "write one of 1, 2" in await response.text()


async def test_decisions_of_all_workers_are_explained(tmp_path):
    path = tmp_path / "decisions.jsonl"
    flags = ("--admin-port=0", "--decision-sample-rate=1", f"--decision-file={path}", "--decision-file-prefixes")
    async with gateway_with_workers(*flags) as gateway:
        for _ in range(12):
            await ask(gateway, PROMPT)
        await until(lambda: path.exists() and path.read_text().count("\n") == 12, "all decisions are in the file")
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert len({record["id"] for record in records}) == 12
        assert len({str(record["prefix"]) for record in records}) == 1, "all workers hash with one key"
        admin = json.loads(await gateway.process.says('"admin":'))["admin"]
        async with command("explain", records[5]["id"], f"--admin=http://{admin}") as explained:
            await explained.says(records[5]["pick"]["endpoint"])
            assert await explained.end() == 0


async def test_a_quota_holds_over_all_workers_and_is_set_for_all(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        f"{PLAIN}- type: tenant-quotas\n  parameters: {{quotas: [{{tenant: a, total: {{concurrentRequests: 6}}}}]}}\n"
    )
    async with gateway_with_workers(f"--config-file={config}", "--admin-port=0") as gateway, AsyncExitStack() as stack:

        async def ask_for_long(http: aiohttp.ClientSession) -> int:
            body = {"model": MODEL, "prompt": "p", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
            headers = {"x-llm-d-inference-fairness-id": "a", "connection": "close"}
            response = await stack.enter_async_context(http.post("/v1/completions", json=body, headers=headers))
            return response.status

        async def admitted(count: int) -> int:
            """Send so many requests at once that do not end; return how many are admitted."""
            async with asyncio.TaskGroup() as asking:
                asked = [asking.create_task(ask_for_long(http)) for _ in range(count)]
            statuses = [each.result() for each in asked]
            assert set(statuses) <= {200, 429}
            return statuses.count(200)

        http = await stack.enter_async_context(aiohttp.ClientSession(gateway.url))
        first = await admitted(24)
        assert 1 <= first <= 6 + 2, "more than the limit and a slice of each other process"
        admin = json.loads(await gateway.process.says('"admin":'))["admin"]
        async with http.get(f"http://{admin}/api/allocation") as shown:
            allocation = (await shown.json())["allocation"].values()
        assert sum(each["reservations"]["byTenant"].get("a", 0) for each in allocation) == first
        change = {"tenant": "a", "quota": {"total": {"concurrentRequests": 30}}}
        async with http.post(f"http://{admin}/api/quota/adjust", json=change) as adjusted:
            assert adjusted.status == 200
        more = 0

        async def goes_on() -> bool:
            nonlocal more
            more += await admitted(12)
            return first + more > 12

        await until(goes_on, "the workers know the new limit")
        assert first + more <= 30 + 2 * 12, "the limit and a slice of each other process"


async def test_a_worker_that_is_killed_is_replaced_and_the_other_serves_on():
    async with gateway_with_workers() as gateway:
        before = worker_pids(gateway)
        assert set(before) == {1, 2}
        long = asyncio.gather(*(ask(gateway, f"{number} {PROMPT}") for number in range(20)), return_exceptions=True)
        os.kill(before[1], signal.SIGKILL)
        await long  # those of this worker may have failed

        await replaced(gateway, 1)
        after = worker_pids(gateway)
        assert after[2] == before[2]
        assert after[1] != before[1]
        await serve_on(gateway, 50)
        await nothing_in_flight(gateway)


class Deaths:
    """Kills workers, and knows in which times one was dying."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.count = 0
        self.times: list[tuple[float, float]] = []
        """From the kill until the main process has noticed the death."""

    async def kill(self, *numbers: int) -> None:
        """Kill these workers at once, and wait until the main process has noticed."""
        pids, began = worker_pids(self._gateway), time.monotonic()
        for number in numbers:
            os.kill(pids[number], signal.SIGKILL)
        self.count += len(numbers)
        await noticed(self._gateway, self.count)
        self.times.append((began, time.monotonic()))

    async def kill_starting(self, *numbers: int, after_seconds: float) -> None:
        """Kill the replacements of these workers, so long after their start."""
        await until(lambda: worker_pids(self._gateway).keys() >= {*numbers}, "replacements start", seconds=60)
        await asyncio.sleep(after_seconds)
        await self.kill(*numbers)


async def ask_steadily(gateway: Gateway, failures: list[tuple[float, float]]) -> None:
    """Send some requests a second until cancelled; keep the times of those that failed."""

    async def one(number: int) -> None:
        began = time.monotonic()
        try:
            await ask(gateway, f"{number} of many")
        except (AssertionError, aiohttp.ClientError):
            failures.append((began, time.monotonic()))

    async with asyncio.TaskGroup() as requests:
        for number in itertools.count():
            requests.create_task(one(number))
            await asyncio.sleep(0.2)


def held_by(pid: int) -> tuple[int, int]:
    """Return how many descriptors a process has open, and how many segments of shared memory it has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    segments = sum("/dev/shm/" in line or "memfd:" in line for line in maps)  # noqa: S108  no file is written there
    return descriptors(pid), segments


@pytest.mark.timeout(600)  # a minute for a hundred, on two cores that do nothing else
@pytest.mark.parametrize(
    "count",
    [pytest.param(30, marks=pytest.mark.slow), pytest.param(100, marks=[pytest.mark.slow, pytest.mark.endurance])],
)
async def test_deaths_of_workers_leave_nothing_and_cost_only_what_was_in_flight_there(count):
    async with gateway_with_workers(workers=3) as gateway:
        deaths, failures = Deaths(gateway), list[tuple[float, float]]()
        asking = asyncio.create_task(ask_steadily(gateway, failures))

        async def kill_ten(first: int, second: int) -> None:
            """Kill two of the three while they serve, and four times as they start."""
            await deaths.kill(first, second)
            for number in range(4):
                await deaths.kill_starting(first, second, after_seconds=0.2 * number)
            await serving(gateway, 3)

        pairs = list(itertools.islice(itertools.cycle([(1, 2), (2, 3), (3, 1)]), count // 10))
        await kill_ten(*pairs[0])
        (opened, mapped), resident_kib = held_by(gateway.process.pid), memory_kib(gateway.process.pid, "VmRSS")
        for pair in pairs[1:]:
            await kill_ten(*pair)
        assert deaths.count == count
        asking.cancel()
        opened_later, mapped_later = held_by(gateway.process.pid)
        assert opened_later <= opened + 4  # connections of Envoy and of this test
        assert mapped_later <= mapped
        assert memory_kib(gateway.process.pid, "VmRSS") <= resident_kib + 16 * 1024
        assert len(worker_pids(gateway)) == 3
        unexplained = [
            (began, ended)
            for began, ended in failures
            if not any(began <= noticed and ended >= killed for killed, noticed in deaths.times)
        ]
        assert not unexplained


async def test_connections_come_back_to_a_worker_that_was_replaced():
    async with gateway_with_workers() as gateway:
        await serve_on(gateway, 50, short=12, long=0)
        os.kill(worker_pids(gateway)[2], signal.SIGKILL)
        asking = asyncio.create_task(ask_and_fail(gateway))  # Envoy connects to the other
        await replaced(gateway, 1)
        asking.cancel()
        async with load_on(gateway.url, short=12, long=0) as load:  # takes no failure
            await gateway.process.says("connection moves to another worker")
            await load.answered_after(time.monotonic(), 50)


@pytest.mark.slow  # ten seconds without a message, and five until it is killed
async def test_a_worker_that_hangs_is_replaced():
    async with gateway_with_workers() as gateway:
        os.kill(worker_pids(gateway)[1], signal.SIGSTOP)
        await replaced(gateway, 1)


async def test_ended_by_a_signal_it_serves_open_streams_to_their_end():
    async with gateway_with_workers("--drain-timeout=30s") as gateway:
        body = {"model": MODEL, "prompt": "long", "max_tokens": 300, "stream": True, "ignore_eos": True}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{gateway.url}/v1/completions", json=body) as response,
        ):
            await response.content.readline()
            os.kill(gateway.process.pid, signal.SIGTERM)
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await until(lambda: not gateway.process.running, "it ends")
        assert not worker_pids(gateway)


async def test_workers_end_with_a_main_process_that_is_killed():
    async with gateway_with_workers() as gateway:
        pids = worker_pids(gateway).values()
        os.kill(gateway.process.pid, signal.SIGKILL)
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers have ended")


async def test_configuration_is_reloaded_by_all_processes(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(PLAIN)
    async with gateway_with_workers(f"--config-file={config}", "--decision-sample-rate=1", "--admin-port=0") as gateway:
        config.write_text(PLAIN.replace("default", "other"))
        await gateway.shows(
            lambda health: health["config"]["generation"] == 2 and not health["workers"].get("problems"),
            "all processes have the new configuration",
        )
        await serve_on(gateway)
        config.write_text("nonsense")
        await gateway.shows(lambda health: health["config"]["refused"] is not None, "the broken version is refused")
        os.kill(worker_pids(gateway)[1], signal.SIGKILL)
        await replaced(gateway, 1)  # by one with the last good version
        await gateway.shows(lambda health: "differing" not in health["workers"], "the replacement has the same version")
        await serve_on(gateway)
