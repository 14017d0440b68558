# SPDX-License-Identifier: Apache-2.0
"""Kill and restart model servers in turn under load, and count the lost requests.

A campaign of any size: `await killed_in_turn(gateway, servers, load, kills=...)` returns what came of every request.
With load from elsewhere: `await kill_in_turn(servers, deaths, kills=...)`.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.support import world
from tests.support.ports import reserved_ports
from tests.support.waiting import until

MODEL = "mortal-8b"
_MOST_OPEN = 500
_OK = 200


def small_server(name: str, port: int) -> Sequence[str]:
    """The command of a server that starts at once, and does little."""
    return sys.executable, "-I", "-S", str(Path(__file__).with_name("mortal_server.py")), str(port), name


def simulated_server(name: str, port: int) -> Sequence[str]:
    """The command of one that takes time for its tokens, as one on a GPU does."""
    flags = f"--port={port}", f"--model={world.MODEL}", f"--name={name}", "--preset=h100", "--time-scale=0.1"
    return sys.executable, "-m", "epp", "sim-server", *flags


@dataclass
class Mortal:
    """A model server as a process of its own, on a port that it has again after each death."""

    name: str
    port: int
    command: Callable[[str, int], Sequence[str]] = small_server
    process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Return once it says that it listens."""
        self.process = await asyncio.create_subprocess_exec(
            *self.command(self.name, self.port),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # full of clients that have left
        )
        assert self.process.stdout is not None
        assert await self.process.stdout.readline(), f"{self.name} did not start"

    async def end(self, sent: signal.Signals = signal.SIGKILL) -> float:
        """Return the moment in which it was dead."""
        process, self.process = self.process, None
        if process is None:
            return time.monotonic()
        watch = asyncio.create_task(asyncio.to_thread(_death_of, process.pid))
        await asyncio.sleep(0)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sent)
        dead = await watch
        await process.wait()
        return dead


def _death_of(pid: int) -> float:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return time.monotonic()


@contextlib.asynccontextmanager
async def mortals(
    count: int, command: Callable[[str, int], Sequence[str]] = small_server
) -> AsyncIterator[list[Mortal]]:
    """Run so many, each by the command for its name and port."""
    with reserved_ports(count) as ports:
        servers = [Mortal(f"s{number}", port, command) for number, port in enumerate(ports)]
        try:
            await asyncio.gather(*(server.start() for server in servers))
            yield servers
        finally:
            await asyncio.gather(*(server.end() for server in servers))


@dataclass(frozen=True)
class Sent:
    """A request, and its outcome; times are those of the client."""

    started: float
    ended: float
    status: int
    """0 where no headers came."""
    complete: bool
    server: str = ""
    said: str = ""

    @property
    def lost(self) -> bool:
        return self.status != _OK or not self.complete


@dataclass(frozen=True)
class Death:
    """A kill, and the moment in which the kernel reported the process as dead: by then its sockets are closed.

    In between, milliseconds or tens of them, the kernel frees the memory of the process, and still takes connections
    and requests in its name: nobody can know of its death yet.
    """

    killed: float
    dead: float


@dataclass
class Campaign:
    """Everything that was sent, and the deaths."""

    sent: list[Sent] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)

    @property
    def lost(self) -> list[Sent]:
        return [one for one in self.sent if one.lost]

    @property
    def lost_at_death(self) -> list[Sent]:
        """Of them, those that a server took with it: sent before it was dead, and not ended before it was killed."""
        return [one for one in self.lost if any(one.started <= d.dead and one.ended >= d.killed for d in self.deaths)]

    @property
    def lost_after(self) -> list[Sent]:
        """Of them, all others, which were sent to a server that was dead already."""
        at_death = {id(one) for one in self.lost_at_death}
        return [one for one in self.lost if id(one) not in at_death]

    def lost_long_after(self) -> list[Sent]:
        """Of those, the ones that were sent when whatever was under way at the death should have ended.

        How long that takes depends on the machine: 99 of 100 requests take no longer.
        """
        took = sorted(one.ended - one.started for one in self.sent if not one.lost)
        slack = took[len(took) * 99 // 100] if took else 0.0
        return [one for one in self.lost_after if all(abs(one.started - d.dead) > slack for d in self.deaths)]

    def __str__(self) -> str:
        whats = Counter(f"{one.status} {one.said[:150]}" for one in self.lost)
        since = [
            round(1000 * min((one.started - d.dead for d in self.deaths if one.started > d.dead), default=-1.0), 1)
            for one in self.lost_after
        ]
        return (
            f"{len(self.sent)} requests, {len(self.deaths)} deaths, {len(self.lost)} lost: {len(self.lost_at_death)} "
            f"at a death, {len(self.lost_after)} sent so many ms after one: {since}; deaths took so many ms: "
            f"{[round(1000 * (d.dead - d.killed), 1) for d in self.deaths]}; {dict(whats)}"
        )


@dataclass(frozen=True)
class Load:
    """Requests at a steady rate, whatever comes back."""

    rate: float = 150.0
    """Requests per second."""
    tokens: int = 2
    stream: bool = False


async def killed_in_turn(
    url: str,
    servers: Sequence[Mortal],
    load: Load,
    *,
    kills: int,
    between_seconds: float = 0.5,
    is_back: Callable[[Mortal], Awaitable[object]] | None = None,
    sent: signal.Signals = signal.SIGKILL,
) -> Campaign:
    """Kill one server after the other under load, and start each again before the next."""
    campaign = Campaign()
    stopping = asyncio.Event()

    async def kill_on() -> None:
        try:
            await kill_in_turn(
                servers, campaign.deaths, kills=kills, between_seconds=between_seconds, is_back=is_back, sent=sent
            )
        finally:
            stopping.set()

    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as http,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(kill_on())
        tasks.create_task(_send_on(http, url, load, campaign, stopping))
    return campaign


async def kill_in_turn(
    servers: Sequence[Mortal],
    deaths: list[Death],
    *,
    kills: int,
    between_seconds: float,
    is_back: Callable[[Mortal], Awaitable[object]] | None = None,
    sent: signal.Signals = signal.SIGKILL,
) -> None:
    """Kill one server after the other, note its death, and start it again before the next."""
    await asyncio.sleep(between_seconds)
    for number in range(kills):
        server = servers[number % len(servers)]
        killed = time.monotonic()
        deaths.append(Death(killed, await server.end(sent)))
        await asyncio.sleep(between_seconds)
        await server.start()
        if is_back is not None:
            await until(lambda server=server: is_back(server), f"{server.name} is used again")
        await asyncio.sleep(between_seconds)


async def _send_on(
    http: aiohttp.ClientSession, url: str, load: Load, campaign: Campaign, stopping: asyncio.Event
) -> None:
    opened: set[asyncio.Task[None]] = set()
    due = time.monotonic()
    while not stopping.is_set():
        if len(opened) < _MOST_OPEN:
            task = asyncio.create_task(_send(http, url, load, campaign))
            opened.add(task)
            task.add_done_callback(opened.discard)
        due += 1 / load.rate
        await asyncio.sleep(max(due - time.monotonic(), 0))
    await asyncio.gather(*opened)


async def _send(http: aiohttp.ClientSession, url: str, load: Load, campaign: Campaign) -> None:
    body = world.question(f"question {len(campaign.sent)}", load.tokens, model=MODEL, stream=load.stream)
    started, status, server, said, complete = time.monotonic(), 0, "", "", False
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            status, server = response.status, response.headers.get("x-sim-server", "")
            text = await response.text()
            complete = not load.stream or text.rstrip().endswith("data: [DONE]")
            said = "" if status == _OK else text
    except (aiohttp.ClientError, TimeoutError) as error:
        said = repr(error)
    campaign.sent.append(Sent(started, time.monotonic(), status, complete, server, said))
