# SPDX-License-Identifier: Apache-2.0
"""Effect of a failing shared state on requests, and of a rolling upgrade on caches: `make bench-shared`."""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import msgspec

from epp.lab.sim.server import running
from perf.rig.processes import BenchError
from tests.support.gateways import Gateway, gateway_of
from tests.support.ports import reserved_ports
from tests.support.redis_server import Server
from tests.support.waiting import until
from tests.support.world import FAST, MODEL, pool_of

SERVERS, PICKERS = 4, 2
BEGINNINGS, BEGINNING_WORDS = 80, 300
_HELD = 25
"""Prefixes that fit in the cache of one server."""
_TOKENS_OF_A_WORD = 1.25
_LATE_SECONDS = 0.005
_CATCH_UP_SECONDS = 30.0
_SLOW_SECONDS = 0.5


@dataclass
class Answers:
    """Times of the requests of one phase."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    prompt: int = 0
    cached: int = 0

    def at(self, share: float) -> float:
        """Return a quantile of the times, in seconds."""
        return sorted(self.seconds)[int(len(self.seconds) * share)]

    def late(self, than: float) -> float:
        """Return the percentage of requests that took more than 5 ms longer than a time."""
        return 100 * sum(each > than + _LATE_SECONDS for each in self.seconds) / len(self.seconds)

    @property
    def hits(self) -> float:
        return 100 * self.cached / max(1, self.prompt)


class Clients:
    """Requests at a fixed rate, by round robin to the gateways in use."""

    def __init__(self, http: aiohttp.ClientSession, rate: float) -> None:
        self.urls: list[str] = []
        self._http = http
        self._rate = rate
        self._chance = random.Random(1)

    async def run(self, seconds: float) -> Answers:
        """Send for a time; return when all requests are answered."""
        return await self.run_while(asyncio.sleep(seconds))

    async def run_while(self, work: Awaitable[object]) -> Answers:
        """Send until a coroutine ends; return when all requests are answered."""
        found, number, began = Answers(), 0, time.perf_counter()
        working = asyncio.ensure_future(work)
        async with asyncio.TaskGroup() as requests:
            while not working.done():
                due = began + number / self._rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                requests.create_task(self._ask(self.urls[number % len(self.urls)], found, due))
                number += 1
        await working
        return found

    async def _ask(self, url: str, found: Answers, due: float) -> None:
        begin = f"{self._chance.randrange(BEGINNINGS)} some words " * (BEGINNING_WORDS // 3)
        body = {"model": MODEL, "prompt": f"{begin}{self._chance.random()}", "max_tokens": 2}
        try:
            async with self._http.post(f"{url}/v1/completions", json=body) as response:
                usage = (await response.json())["usage"]
        except (aiohttp.ClientError, KeyError, TimeoutError):
            found.lost += 1
            return
        found.seconds.append(time.perf_counter() - due)
        found.prompt += usage["prompt_tokens"]
        found.cached += usage["prompt_tokens_details"]["cached_tokens"]


class Proxy:
    """Proxy between pickers and the server, which can delay data or respond with noise."""

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.is_garbage = False
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._pump(reader, back, 0.0), self._pump(there, writer, 1.0), return_exceptions=True)
            back.close()
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, share: float) -> None:
        """Forward bytes; this direction has `share` of the delay."""
        try:
            while data := await source.read(65536):
                if self.delay and share:
                    await asyncio.sleep(self.delay * share)
                sink.write(os.urandom(len(data)) if self.is_garbage and share else data)
                await sink.drain()
        finally:
            sink.close()


@dataclass(frozen=True)
class Store:
    """A genuine server behind a proxy."""

    server: Server
    proxy: Proxy
    port: int
    """Port of the proxy."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def pass_on(self, *, after: float = 0.0, is_garbage: bool = False) -> None:
        """Delay responses, or replace them with noise."""
        self.proxy.delay, self.proxy.is_garbage = after, is_garbage

    def limit(self, memory: int) -> None:
        """Limit its memory, in bytes; 0 for no limit."""
        self.server.client.config_set("maxmemory", memory)


FAULTS: Mapping[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "killed": (lambda store: store.server.kill(), lambda store: store.server.start()),
    "answers after 500 ms": (lambda store: store.pass_on(after=_SLOW_SECONDS), lambda store: store.pass_on()),
    "a replica, which refuses writes": (
        lambda store: store.server.client.replicaof("127.0.0.1", "1"),
        lambda store: store.server.client.replicaof("NO", "ONE"),
    ),
    "full": (lambda store: store.limit(1), lambda store: store.limit(0)),
    "answers garbage": (lambda store: store.pass_on(is_garbage=True), lambda store: store.pass_on()),
}
"""Start and end of each fault."""


@asynccontextmanager
async def proxied(server: Server) -> AsyncIterator[Store]:
    """Put a proxy in front of a server."""
    proxy = Proxy(server.port)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listening:
        yield Store(server, proxy, listening.sockets[0].getsockname()[1])


@asynccontextmanager
async def store() -> AsyncIterator[Store]:
    """Run a server and its proxy; raises BenchError without the program."""
    program = os.environ.get("EPP_TEST_REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        raise BenchError("there is no redis-server: install it")
    with tempfile.TemporaryDirectory() as folder, reserved_ports(1) as (port,):
        server = Server(program, folder, port).start()
        try:
            await until(server.is_up, "the server answers")
            async with proxied(server) as found:
                yield found
        finally:
            server.kill()


@asynccontextmanager
async def pool() -> AsyncIterator[str]:
    """Run model servers; the cache of each holds a third of the prefixes."""
    blocks = int(_HELD * BEGINNING_WORDS * _TOKENS_OF_A_WORD / FAST.block_size)
    async with AsyncExitStack() as stack:
        sims = {}
        for number in range(SERVERS):
            profile = msgspec.structs.replace(FAST, name=f"s{number}", num_gpu_blocks=blocks, max_model_len=8192)
            sims[profile.name] = await stack.enter_async_context(running(profile))
        yield pool_of(sims)


async def shares(gateway: Gateway) -> bool:
    """Return whether a picker is connected without a problem, and has a peer."""
    state = (await gateway.health())[1]["shared_state"]
    return bool(state["connected"] and "problem" not in state and state["other_pickers"])


async def caught_up(gateways: Sequence[Gateway]) -> float:
    """Return the seconds until all pickers share their state again."""
    began = time.perf_counter()
    while not all([await shares(each) for each in gateways]):
        if time.perf_counter() - began > _CATCH_UP_SECONDS:
            raise BenchError("the pickers do not share their state again")
        await asyncio.sleep(0.02)
    return time.perf_counter() - began


async def fail(clients: Clients, flags: Sequence[str], shared: Store, seconds: float) -> dict[str, dict[str, float]]:
    """Return figures by fault."""
    rows = {}
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(gateway_of(*flags)) for _ in range(PICKERS)]
        clients.urls = [each.url for each in gateways]
        await caught_up(gateways)
        await clients.run(seconds)  # fills the caches
        for name, (begin, end) in FAULTS.items():
            before = await clients.run(seconds)
            begin(shared)
            during = await clients.run(seconds)
            end(shared)
            waiting = asyncio.create_task(caught_up(gateways))
            after = await clients.run_while(waiting)
            rows[name] = {
                "requests": len(during.seconds),
                "lost": during.lost + after.lost,
                "before: p50, ms": 1e3 * before.at(0.5),
                "p50, ms": 1e3 * during.at(0.5),
                "before: p99, ms": 1e3 * before.at(0.99),
                "p99, ms": 1e3 * during.at(0.99),
                "before: 5 ms over its median, %": before.late(before.at(0.5)),
                "5 ms over that median, %": during.late(before.at(0.5)),
                "before: hits, %": before.hits,
                "hits, %": during.hits,
                "catches up after, s": waiting.result(),
            }
            print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)  # it takes minutes
    return rows


async def upgrade(clients: Clients, flags: Sequence[str], seconds: float) -> dict[str, float]:
    """Return cache hits before, during and after the replacement of the pickers, one by one."""
    async with AsyncExitStack() as stack:
        old = [await stack.enter_async_context(AsyncExitStack()) for _ in range(PICKERS)]
        clients.urls = [(await each.enter_async_context(gateway_of(*flags))).url for each in old]
        await clients.run(seconds)
        before = await clients.run(seconds)

        async def replace() -> None:
            for number, each in enumerate(old):
                gateway = await stack.enter_async_context(gateway_of(*flags))
                clients.urls[number] = gateway.url
                await asyncio.sleep(seconds / PICKERS / 2)  # requests of the old one end
                await each.aclose()

        during = await clients.run_while(replace())
        after = await clients.run(seconds)
    return {
        "before: hits, %": before.hits,
        "hits, %": during.hits,
        "after: hits, %": after.hits,
        "requests": len(during.seconds),
        "lost": before.lost + during.lost + after.lost,
    }


async def measure(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the figures of each fault and of each upgrade, by name."""
    rows: dict[str, dict[str, float]] = {}
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0)
    async with store() as shared, aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        async with pool() as servers:
            flags = (f"--endpoints={servers}", f"--shared-state={shared.url}")
            rows |= await fail(Clients(http, given.rate), flags, shared, given.seconds)
        for name, more in (("alone", ()), ("shared", (f"--shared-state={shared.url}",))):
            async with pool() as servers:
                rows[f"upgrade: {name}"] = await upgrade(
                    Clients(http, given.rate), (f"--endpoints={servers}", *more), given.seconds / 2
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Two pickers behind an Envoy each share their state, which fails.")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each fault, and of each upgrade")
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second of all pickers together")
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
