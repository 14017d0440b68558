# SPDX-License-Identifier: Apache-2.0
"""Compares replays on calibrated profiles with genuine vLLM servers: `make tuning-vllm VLLM=path/to/venv`."""

import argparse
import asyncio
import contextlib
import fcntl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
import numpy as np
import yaml

from epp.config import load_text
from epp.config.load import sample_texts
from epp.framework.arrays import Floats
from epp.lab.replay.fleet import Fleet, ReplayOptions, load_fleet
from epp.lab.replay.jobs import replay
from epp.lab.replay.summary import quantile
from epp.lab.replay.traffic import TracedArrival, TraceTraffic
from epp.lab.sim.profile import SimProfile, load_server_profile
from epp.lab.traces.making import MadeTrace, Spread, Workload
from perf.bench.profiles.real import gateway
from perf.rig.processes import BenchError
from perf.vllm.servers import LAYERS, MODEL, calibrate, empty_caches, running
from tests.support.ports import reserved_ports

_WORKLOAD = Workload(
    first=Spread(300, 0.8), output=Spread(24, 0.6), prefixes=16, prefix_tokens=512, most_tokens=3000, block_tokens=32
)
"""Short answers to prompts with one of 16 system prompts, more than the smaller cache holds."""
_POLL_SECONDS = 0.25
"""Five times the default, because pages use CPU time that the model needs here."""
_JSON = {"content-type": "application/json"}
_SEEDS = range(5)
_FIGURES = ("first token", "whole request")
_SHARES = (0.5, 0.9)
_WITHIN = 0.25


class Times(NamedTuple):
    """Seconds of requests; infinite without an answer."""

    first: Floats
    whole: Floats


def capacity(profile: SimProfile) -> float:
    """Return the requests per second of a busy server with the system prompts in its cache."""
    step = profile.seconds_per_output_token * (1 + profile.batch_slope * (profile.max_num_seqs - 1))
    prefill = profile.prefill_step_seconds + _WORKLOAD.first.mean / profile.prefill_tokens_per_second
    return 1 / (prefill + _WORKLOAD.output.mean * step / profile.max_num_seqs)


def predict(sample: str, fleet: Fleet, trace: MadeTrace) -> Times:
    """Return the times of replays with several seeds."""
    config = load_text(sample_texts()[sample], sample)
    options = [ReplayOptions(seed=seed, regret_every=0, poll_seconds=_POLL_SECONDS) for seed in _SEEDS]
    outcomes = [replay(config, fleet, trace, each).columns for each in options]
    first, whole = (np.concatenate([getattr(one, name) for one in outcomes]) for name in ("ttft", "total"))
    return Times(np.nan_to_num(first, nan=np.inf), np.nan_to_num(whole, nan=np.inf))


def picker(sample: str, endpoints: Path) -> AbstractAsyncContextManager[str]:
    """Run a picker for an endpoint list, with an Envoy, until the block ends; yield the URL."""
    config = yaml.safe_load(sample_texts()[sample])
    config["plugins"].append({"type": "file-discovery", "parameters": {"path": str(endpoints)}})
    config["dataLayer"] = {"discovery": {"pluginRef": "file-discovery"}}
    return gateway(yaml.safe_dump(config), f"--refresh-metrics-interval={_POLL_SECONDS}s")


async def measure(sample: str, endpoints: Path, trace: MadeTrace) -> Times:
    """Send the requests of a trace through a real Envoy when they are due."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=60)
    async with (
        picker(sample, endpoints) as address,
        aiohttp.ClientSession(address, connector=connector, timeout=timeout) as session,
    ):
        started = time.perf_counter()
        tasks = []
        for arrival in TraceTraffic(trace):
            body = _body(arrival)
            await asyncio.sleep(max(0.0, started + arrival.at - time.perf_counter()))
            tasks.append(asyncio.create_task(_request(session, body)))
        times = np.array(await asyncio.gather(*tasks)).T
    return Times(times[0], times[1])


def _body(arrival: TracedArrival) -> bytes:
    tokens = arrival.token_ids()[: arrival.prompt_tokens] % 900 + 50  # in the vocabulary, and not special tokens
    settings = {"max_tokens": arrival.output_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    return msgspec.json.encode({"model": MODEL, "prompt": tokens.tolist(), **settings})


async def _request(session: aiohttp.ClientSession, body: bytes) -> tuple[float, float]:
    sent, first = time.perf_counter(), np.inf
    try:
        async with session.post("/v1/completions", data=body, headers=_JSON) as response:
            if response.status != 200:
                return np.inf, np.inf
            async for _ in response.content.iter_any():
                first = min(first, time.perf_counter() - sent)
    except (aiohttp.ClientError, TimeoutError):
        return first, np.inf
    return first, time.perf_counter() - sent


def table(predicted: Mapping[str, Times], measured: Mapping[str, Times]) -> Iterator[str]:
    """Yield the lines of a table, and the ranking of the configurations by each figure."""
    columns = [f"p{100 * share:.0f} {end}" for share in _SHARES for end in ("predicted", "measured")]
    yield f"| seconds | configuration | {' | '.join(columns)} | p90 within {_WITHIN:.0%} |"
    yield "|---|---|" + 4 * "--:|" + "---|"
    for place, figure in enumerate(_FIGURES):
        for sample in measured:
            pairs = [[quantile(one[sample][place], share) for one in (predicted, measured)] for share in _SHARES]
            error = pairs[-1][0] / pairs[-1][1] - 1
            cells = " | ".join(f"{value:.2f}" for pair in pairs for value in pair)
            verdict = f"{'yes' if abs(error) <= _WITHIN else 'no'}, {error:+.0%}"
            yield f"| {figure} | {sample} | {cells} | {verdict} |"
    yield ""
    for place, figure in enumerate(_FIGURES):
        for share in _SHARES:
            orders = [
                ", ".join(sorted(measured, key=lambda name: quantile(times[name][place], share)))
                for times in (predicted, measured)
            ]
            same = "the same" if orders[0] == orders[1] else f"measured: {orders[1]}"
            yield f"order by p{100 * share:.0f} of {figure}, predicted: {orders[0]}; {same}"


@asynccontextmanager
async def turn(lock: Path | None) -> AsyncIterator[None]:
    """Hold the lock of a machine that is shared with other measurements."""
    with contextlib.ExitStack() as stack:
        if lock is not None:
            await asyncio.to_thread(fcntl.flock, stack.enter_context(lock.open("a")), fcntl.LOCK_EX)
        yield


async def run(given: argparse.Namespace, directory: Path) -> Iterator[str]:
    """Measure, and return the lines to print."""
    samples: Sequence[str] = given.samples.split(",")
    endpoints = directory / "endpoints.yaml"
    async with AsyncExitStack() as stack:
        ports = dict(zip(LAYERS, stack.enter_context(reserved_ports(len(LAYERS))), strict=True))
        entries = [{"name": name, "address": "127.0.0.1", "port": str(port)} for name, port in ports.items()]
        endpoints.write_text(yaml.safe_dump({"endpoints": entries}))
        async with turn(given.lock):
            await stack.enter_async_context(running(given.venv.resolve(), ports))
            async with picker(samples[0], endpoints):  # its polls use time of the servers
                await calibrate(ports, directory, given.budget)
        fleet = load_fleet(endpoints, [f"{name}={directory / name}.yaml" for name in ports])
        rate = given.load * sum(capacity(load_server_profile(directory / f"{name}.yaml")) for name in ports)
        trace = MadeTrace(_WORKLOAD, rate, given.seconds, seed=given.seed)
        print(f"{sum(1 for _ in trace)} requests in {given.seconds:g} s", file=sys.stderr)
        predicted = {sample: await asyncio.to_thread(predict, sample, fleet, trace) for sample in samples}
        measured = {}
        for sample in samples:
            async with turn(given.lock):
                await empty_caches(ports.values())
                measured[sample] = await measure(sample, endpoints, trace)
            print(f"{sample} is measured", file=sys.stderr)
    return table(predicted, measured)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Times of replays on calibrated profiles, and of genuine servers.")
    parser.add_argument("venv", type=Path, help="virtual environment with bin/vllm and models/medium")
    parser.add_argument("--samples", default="adaptive,llm-d-default,round-robin", help="ready-made configurations")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of the calibration")
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the trace")
    parser.add_argument("--load", type=float, default=0.33, help="share of the servers' capacity")
    parser.add_argument("--seed", type=int, default=1, help="of the trace")
    parser.add_argument("--keep", type=Path, help="directory for the server profiles")
    parser.add_argument("--lock", type=Path, help="file that is locked during each measurement")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epp-vllm-") as temporary:
        directory = given.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lines = asyncio.run(run(given, directory))
        except* (BenchError, TimeoutError) as errors:
            sys.exit(f"tuning-vllm: {errors.exceptions[0]!r}")
        print(*lines, sep="\n")


if __name__ == "__main__":
    main()
