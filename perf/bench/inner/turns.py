# SPDX-License-Identifier: Apache-2.0
"""The longest iteration of the event loop for actions of clients and operators: sessions without a socket.

Rows are CPU time in milliseconds. `--quick` is a tenth of the size.
"""

import asyncio
import contextlib
import gc
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import uvloop
import yaml
from bodies import messages, new_director, play
from flow_control import CONFIG as FLOW_CONFIG
from pool import HARDWARE, HEADERS, PLAIN, SAMPLES, endpoint, reported, route, running
from timing import no_log_lines, quick, tell, turns

from epp.app.running_config import RunningConfig
from epp.app.settings import PoolSettings
from epp.config import Assembly, Builder, assemble, load_text
from epp.extproc.http2.fair_scheduler import Pace
from epp.framework import Endpoint, Headers, RequestError, SystemClock
from epp.framework.quotas import Blocked
from epp.framework.refusals import Breach
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.routing.director import Director, PendingRequest, PoolPolicies, Rewrite, Runtime
from epp.routing.director.pipeline import NO_POLICIES, Pipeline
from epp.runtime.supervisor import collect_rarely
from epp.telemetry.metrics import Metrics

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MILLION = 1_000_000
REWRITING = PoolPolicies(generic=Rewrite("all", generic=True, models=("another-model",), weights=(1,)))
OTHER_ORDER = FLOW_CONFIG.replace("round-robin-fairness-policy", "global-strict-fairness-policy")
BODY = b'{"model":"m","prompt":"hello"}'


async def longest(work: Awaitable[object]) -> float:
    """Return the CPU time of the longest iteration."""
    gc.collect()
    _, turn = await turns(work)
    return turn


def bodies(scale: float) -> Iterator[tuple[str, str, bytes]]:
    """Yield row, path and body of requests that are slow to parse or to copy."""
    million = int(MILLION * scale)
    text = b"x" * (30 * million)
    yield "brackets", CHAT, b'{"model":"m","messages":' + b"[" * million + b"]" * million + b"}"
    yield "bracket-pairs", CHAT, b'{"model":"m","x":[' + (b"[]," * million)[:-1] + b'],"messages":[]}'
    yield "braces", COMPLETIONS, b'{"model":"m","prompt":"x","y":' + b'{"a":' * million + b"1" + b"}" * million + b"}"
    yield "token-ids", COMPLETIONS, b'{"model":"m","prompt":[' + (b"1," * (2 * million))[:-1] + b"]}"
    yield "token-lists", COMPLETIONS, b'{"model":"m","prompt":[' + (b"[1]," * million)[:-1] + b"]}"
    yield "texts", EMBEDDINGS, b'{"model":"m","input":[' + (b'"",' * million)[:-1] + b"]}"
    yield "members", CHAT, b"{" + b"".join(b'"%d":1,' % number for number in range(million)) + b'"model":"m"}'
    yield "escapes", COMPLETIONS, b'{"model":"m","prompt":"' + b"\\u0041" * (5 * million) + b'"}'
    yield "text-2m", COMPLETIONS, b'{"prompt":"' + text[: 2 * million] + b'","model":"m"}'
    yield "text-30m", COMPLETIONS, b'{"model":"m","prompt":"' + text + b'"}'
    yield "open-text-30m", COMPLETIONS, b'{"model":"m","prompt":"' + text
    yield "spaces-30m", COMPLETIONS, b'{"model":"m","prompt":"x"' + b" " * len(text) + b"}"
    yield "ids-30m", COMPLETIONS, b'{"model":"m","prompt":[' + (b"12345," * (5 * million))[:-1] + b"]}"
    part = b'{"role":"user","content":"hello hello hello hello hello hello hello hello"},'
    yield "messages-30m", CHAT, b'{"model":"m","messages":[' + (part * (30 * million // len(part)))[:-1] + b"]}"


async def exchanged(path: str, body: bytes, policies: PoolPolicies = NO_POLICIES, piece_bytes: int = 0) -> float:
    """Return the longest iteration of the request half of an exchange."""
    director = new_director()
    director.use_policies(policies)
    size = piece_bytes or len(body)
    sent = messages(path, *(body[start : start + size] for start in range(0, len(body), size)))
    return await longest(play(director, sent))


def pipeline(text: str) -> Pipeline:
    return assemble(load_text(text, "bench"), Builder(Registry(), SystemClock())).pipeline


class Line:
    """Requests queued for a full pool, as sessions queue them."""

    def __init__(self, ttl: str = "1h") -> None:
        store = Datastore(SystemClock())
        store.replace([Endpoint("e", "10.0.0.1", 8000)])
        self.text = FLOW_CONFIG.replace("1h", ttl)
        self.director = Director(Runtime(store, SystemClock()), pipeline(self.text))
        self.waits: list[asyncio.Task[object]] = []

    async def fill(self, count: int) -> None:
        self.director.route(HEADERS, BODY, None)
        for number in range(count):
            headers = Headers([(":path", COMPLETIONS), ("x-gateway-inference-fairness-id", f"t{number % 10_000}")])
            held = self.director.route(headers, BODY, None)
            assert isinstance(held, PendingRequest), held
            self.waits.append(asyncio.ensure_future(_settled(held)))
            if number % 16 == 0:
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Wait for all requests, without an iteration that checks all of them."""
        for number, wait in enumerate(self.waits):
            while not wait.done():  # noqa: ASYNC110  one iteration at a time
                await asyncio.sleep(0)
            if number % 1000 == 0:
                await asyncio.sleep(0)
            if not wait.cancelled():
                wait.exception()


async def _settled(held: PendingRequest) -> None:
    """Wait for the outcome of a request, as a session does."""
    await held.settle()
    with contextlib.suppress(RequestError):
        held.routing()


async def came(count: int) -> float:
    """Return the longest iteration while requests arrive, including garbage collections."""
    line = Line()
    found = await longest(line.fill(count))
    line.director.refuse_waiting()
    await line.end()
    return found


async def reloaded(count: int) -> float:
    """Return the longest iteration while the order of flows changes with queued requests."""
    line = Line()
    await line.fill(count)
    other = pipeline(OTHER_ORDER)

    async def switch() -> None:
        line.director.use(other)
        for _ in range(100):
            await asyncio.sleep(0)

    found = await longest(switch())
    line.director.refuse_waiting()
    await line.end()
    return found


async def refused(count: int) -> float:
    """Return the longest iteration while all queued requests are refused."""
    line = Line()
    await line.fill(count)

    async def refuse() -> None:
        line.director.refuse_waiting()
        await line.end()

    return await longest(refuse())


async def expired(count: int) -> float:
    """Return the longest iteration while all queued requests expire at the same time."""
    line = Line("2s" if count <= 10_000 else "15s")
    await line.fill(count)
    return await longest(line.end())


async def left(count: int) -> float:
    """Return the longest iteration while all clients disconnect, a thousand per iteration (more than one reads)."""
    line, pace = Line(), Pace()
    await line.fill(count)

    async def leave() -> None:
        for number, wait in enumerate(line.waits):
            pace.do(wait.cancel)
            if number % 1000 == 0:
                await asyncio.sleep(0)
        await line.end()

    return await longest(leave())


async def resumed(count: int) -> float:
    """Return the longest iteration when 10,000 tenants with exhausted quotas can resume at the same time."""
    line = Line()
    await line.fill(count)
    assert line.director.flow is not None
    (band,) = line.director.flow.queues.bands.values()
    until = SystemClock().now() + 1.0
    for number in range(min(count, 10_000)):
        breach = Breach(f"t{number}", "total.tokensPerMinute", 2.0, 1.0)
        band.throttle(f"t{number}", Blocked(breach, 1, until, waits=True))

    async def resume() -> None:
        while band.throttled_requests:  # noqa: ASYNC110  no event to have
            await asyncio.sleep(0)

    found = await longest(resume())
    line.director.refuse_waiting()
    await line.end()
    return found


async def unanswered(count: int) -> float:
    """Return the longest iteration while requests time out because their endpoints do not answer."""
    store = Datastore(SystemClock())
    store.replace([Endpoint(f"e{number}", f"10.0.0.{number}", 8000) for number in range(1, 9)])
    plain = pipeline("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n")
    director = Director(Runtime(store, SystemClock()), plain, reservation_seconds=0.0)
    routed = [director.route(HEADERS, BODY, None) for _ in range(count)]

    async def sweep() -> None:
        for _ in director.reservations.sweep():
            await asyncio.sleep(0)

    found = await longest(sweep())
    assert len(routed) == count
    assert not len(director.reservations)
    return found


def ask(config: RunningConfig) -> None:
    """Route a request, which may be refused."""
    with contextlib.suppress(RequestError):
        route(config)


def in_a_file(path: Path, members: Iterable[Endpoint], sample: str) -> Assembly:
    """Return the assembly of a sample whose endpoints are in a file."""
    kept = (
        "llm-d.ai/role",
        "nvidia.com/gpu.product",
        "nvidia.com/gpu.memory",
    )  # the size of a file is limited to 1 MiB
    entries = [
        {
            "name": each.name,
            "address": each.address,
            "port": each.port,
            "labels": {label: each.labels[label] for label in kept},
        }
        for each in members
    ]
    path.write_bytes(msgspec.json.encode({"endpoints": entries}))
    text = (SAMPLES / f"{sample}.yaml").read_text()
    given = yaml.safe_load(text)
    given["plugins"].append({"type": "file-discovery", "parameters": {"path": str(path)}})
    given.setdefault("dataLayer", {})["discovery"] = {"pluginRef": "file-discovery"}
    return assemble(load_text(yaml.safe_dump(given), "bench"), Builder(Registry(), SystemClock()))


async def switched(count: int, sample: str, other: str) -> float:
    """Return the longest iteration of a reload to other plugins and another endpoint list, under load."""
    with tempfile.TemporaryDirectory() as directory:
        clock, members = SystemClock(), [endpoint(number) for number in range(2 * count)]
        before = in_a_file(Path(directory) / "before", members[:count], sample)
        config = RunningConfig(before, clock, Metrics("bench", clock), PoolSettings(refresh_metrics_seconds=3600.0))
        await config.start()
        reported(config)
        ask(config)
        after = in_a_file(Path(directory) / "after", members[count // 2 : -count // 2], other)

        async def switch() -> None:
            switching = asyncio.ensure_future(config.switch(after))
            while not switching.done():
                ask(config)
                await asyncio.sleep(0)
            await switching
            for _ in range(20):
                ask(config)
                await asyncio.sleep(0)

        found = await longest(switch())
        await config.stop()
    return found


async def changed(count: int, sample: str, change: Callable[[int], Endpoint | None]) -> float:
    """Return the longest iteration while all endpoints of a list are replaced, under load."""
    config, discovery = await running(sample)
    pool = discovery.pool
    pool.update([endpoint(number) for number in range(count)])
    while len(config.store.endpoints) < count:  # noqa: ASYNC110  no event to have
        await asyncio.sleep(0)
    reported(config)
    ask(config)
    wanted = [other for number in range(count) if (other := change(number)) is not None]

    async def work() -> None:
        pool.replace(wanted)
        for _ in range(3 * count // 4):
            await asyncio.sleep(0)
            ask(config)

    found = await longest(work())
    await config.stop()
    return found


async def main() -> None:
    """Print the figures."""
    few = quick()
    no_log_lines()
    collect_rarely()
    scale = 0.1 if few else 1.0
    figures = {}
    for row, path, body in bodies(scale):
        figures[row] = await exchanged(path, body)
        figures[f"{row}, rewritten"] = await exchanged(path, body, REWRITING)
        if len(body) > 10 * MILLION * scale:
            figures[f"{row}, in pieces"] = await exchanged(path, body, REWRITING, piece_bytes=16 * 1024)
    endpoints = int(5000 * scale)
    figures["switch"] = await switched(endpoints, PLAIN, PLAIN)
    figures["switch, hardware"] = await switched(endpoints, HARDWARE, HARDWARE)
    figures["switch, to hardware"] = await switched(endpoints, PLAIN, HARDWARE)
    for sample in (PLAIN, HARDWARE):
        figures[f"labels, {sample}"] = await changed(endpoints, sample, lambda number: endpoint(number, zone="other"))
        figures[f"others, {sample}"] = await changed(endpoints, sample, lambda number: endpoint(number, uid="other"))
        figures[f"half, {sample}"] = await changed(
            endpoints, sample, lambda number: endpoint(number) if number % 2 else None
        )
    waiting = int(100_000 * scale)
    figures["came"] = await came(waiting)
    figures["reload"] = await reloaded(waiting)
    figures["refused"] = await refused(waiting)
    figures["resumed"] = await resumed(waiting)
    figures["unanswered"] = await unanswered(waiting)
    figures["left"] = await left(waiting)
    figures["expired"] = await expired(waiting)
    tell(figures)


if __name__ == "__main__":
    uvloop.run(main())
