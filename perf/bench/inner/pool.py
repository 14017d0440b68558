# SPDX-License-Identifier: Apache-2.0
"""CPU time and longest loop iteration of changes in a pool of 5,000 endpoints, of 1,000 tags, and of a reload."""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import uvloop
from timing import microseconds, no_log_lines, quick, tell, turns

from epp.app.running_config import RunningConfig
from epp.app.settings import PoolSettings
from epp.config import Assembly, Builder, assemble, load_file
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.datalayer import Discovery, Pool, Report
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, RUNNING, WAITING
from epp.routing.director import Cause
from epp.runtime.supervisor import collect_rarely
from epp.telemetry.metrics import Metrics

SAMPLES = Path(__file__).parents[3] / "config"
PLAIN, HARDWARE = "llm-d-default", "heterogeneous-latency"
HEADERS = Headers([(":path", "/v1/completions"), ("x-request-id", "bench")])
BODY = b'{"model":"m","prompt":"hello hello hello hello"}'
NODE_LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "81559",
    "node.kubernetes.io/instance-type": "p5.48xlarge",
}


class Given(Discovery):
    """Discovery of a pool that the benchmark changes."""

    plugin_type = "given"

    async def start(self, pool: Pool) -> None:
        self.pool = pool

    async def follow(self, pool: Pool) -> None:
        await asyncio.Event().wait()


def endpoint(number: int, *, uid: str = "u", **labels: str) -> Endpoint:
    labels = {"llm-d.ai/role": "decode", "app": "vllm", "zone": f"z{number % 3}", **NODE_LABELS, **labels}
    return Endpoint(f"e{number}", f"127.1.{number // 250}.{number % 250 + 1}", 1, labels=labels, uid=uid)


def build(sample: str) -> Assembly:
    return assemble(load_file(SAMPLES / f"{sample}.yaml"), Builder(Registry(), SystemClock()))


async def running(sample: str) -> tuple[RunningConfig, Given]:
    clock, discovery = SystemClock(), Given()
    settings = PoolSettings(refresh_metrics_seconds=3600.0)
    found = RunningConfig(build(sample), clock, Metrics("bench", clock), settings, discovery=discovery)
    await found.start()
    return found, discovery


def route(config: RunningConfig) -> None:
    config.director.route(HEADERS, BODY, None).complete(Cause.NATURAL)  # type: ignore[union-attr]


def reported(config: RunningConfig) -> None:
    for member in config.store.endpoints:
        config.store.report(member, Report({WAITING: 1.0, RUNNING: 2.0, KV_USAGE: 0.5}))


def milliseconds(work: Callable[..., Any], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return (time.process_time() - started) * 1e3


def changes(number: int) -> Iterable[tuple[list[Endpoint], list[str]]]:
    yield [endpoint(number, x=str(number))], []
    yield [endpoint(number, uid="other")], []
    yield [], [f"default/e{number}"]
    yield [endpoint(number)], []


async def one_change(count: int, rounds: int) -> float:
    """Return the CPU time of a change of one endpoint, including the extra time of the first request after it."""
    config, _ = await running(PLAIN)
    config.store.update([endpoint(number) for number in range(count)])
    reported(config)
    route(config)
    costs = []
    for number in range(rounds):
        for changed, removed in changes(number):
            cost = milliseconds(config.store.update, changed, removed) + milliseconds(route, config)
            costs.append(cost - milliseconds(route, config))
    await config.stop()
    return sorted(costs)[len(costs) // 2]


async def all_join(count: int) -> float:
    """Return the longest loop iteration while all endpoints join."""
    config, discovery = await running(HARDWARE)
    endpoints = [endpoint(number) for number in range(count)]  # sources build endpoints in small batches

    async def join() -> None:
        discovery.pool.update(endpoints)
        while len(config.store.endpoints) < count:  # noqa: ASYNC110  no event exists
            await asyncio.sleep(0)

    _, longest = await turns(join())
    await config.stop()
    return longest


async def reload(count: int) -> tuple[float, float]:
    """Return CPU time and longest loop iteration of a reload to other plugins and back."""
    config, _ = await running(PLAIN)
    config.store.update([endpoint(number) for number in range(count)])

    async def switch(sample: str) -> None:
        await config.switch(await asyncio.to_thread(build, sample))

    await switch(HARDWARE)
    cost, longest = await turns(switch(PLAIN))
    cost_back, longest_back = await turns(switch(HARDWARE))
    await config.stop()
    return (cost + cost_back) / 2, max(longest, longest_back)


def tag(rounds: int) -> float:
    """Return the CPU time to compute the tag of an endpoint from labels of its node."""
    (tagger,) = build(HARDWARE).taggers
    members = [endpoint(number) for number in range(100)]
    return microseconds(lambda: [tagger.tag(member) for member in members], rounds) / len(members)


async def main() -> None:
    """Print the figures."""
    few = quick()
    no_log_lines()
    collect_rarely()
    figures = {"tag": tag(2 if few else 10)}
    figures["reload"], figures["reload-turn"] = await reload(100 if few else 1000)
    figures["change-5000"] = await one_change(5000, 2 if few else 7)
    figures["join-turn-5000"] = await all_join(500 if few else 5000)
    tell(figures)


if __name__ == "__main__":
    uvloop.run(main())
