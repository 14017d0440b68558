# SPDX-License-Identifier: Apache-2.0
"""A picker in a separate process under observation, with a normal client during the attack."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from epp.lab.sim.server import running
from perf.hostile.judging import Judge, Size
from perf.rig.processes import Program, cpu_seconds
from tests.support.commands import command
from tests.support.ports import reserved_ports
from tests.support.serving import PLAIN, SECURE, Served, metrics_on, serving
from tests.support.waiting import until
from tests.support.world import FAST

HERE = Path(__file__).parent
MIB = 2**20
FEW_MIB = 48.0
"""Memory that may remain after an attack, for allocator and caches: far less than is sent."""
STALL_SECONDS = 0.020
"""Maximum time that the event loop may delay a client, whatever arrives."""
_MOST_LEFT_OUT = 1 / 3
"""Share of the client's exchanges that a busy machine may affect."""
_FEW_DESCRIPTORS = 8
_FEW_THREADS = 4
_SAMPLE_SECONDS = 0.2
_SETTLE_SECONDS = 30.0
_ATTACK_SECONDS = 3600.0
_EXCERPT_LINES = 40
_FULL_DISK = "-f 0 && exec 2>/dev/full"
"""Shell commands before the picker starts, which make writes to stderr and to files fail."""
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: %d}}
- {type: active-request-scorer}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: active-request-scorer}]}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
"""
WIDE = CONFIG % 1_000_000
"""A limit that is never reached; its gauge shows whether the ledger is empty."""
NARROW = CONFIG % 4
"""Limit of four requests in flight; the fifth waits in a queue."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Resources of a process, and its use of them."""

    at: float
    resident_mib: float
    peak_mib: float
    descriptors: int
    threads: int
    cpu_seconds: float


def reading(pid: int) -> Reading:
    """Read the resources of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Reading(time.monotonic(), resident, peak, descriptors, int(lines["Threads"]), cpu_seconds(pid))


def forget_peak(pid: int) -> None:
    """Reset the peak memory of a process to its current memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@dataclass(slots=True)
class Seen:
    """Observations of the client during an attack."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    held_up: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Scene:
    """A picker and its attackers."""

    served: Served
    judge: Judge
    stack: AsyncExitStack
    before: Reading
    secure: bool = False
    """Whether the picker uses TLS."""
    _attackers: list[Program] = field(default_factory=list)
    _probe: Program | None = None

    @property
    def pid(self) -> int:
        """Process id of the picker."""
        return self.served.command.pid

    def now(self) -> Reading:
        """Read the resources of the picker's process."""
        return reading(self.pid)

    async def attack(self, module: str, name: str, **arguments: object) -> dict[str, Any]:
        """Run an attack of a module of this directory in a separate process, to its end."""
        if not self._attackers:
            self._attackers.append(await self.new_attacker())
        return await attack_with(self._attackers[0], module, name, **arguments)

    async def new_attacker(self) -> Program:
        """Start a process for attacks; it ends with the scene."""
        return await self.stack.enter_async_context(await Program.run(HERE / "attacker.py"))

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[Seen]:
        """Let a client send requests during the block; its observations are complete afterwards."""
        seen = Seen()
        if self._probe is None:
            self._probe = await self.stack.enter_async_context(await Program.run(HERE / "probe.py"))
        await self._probe.ask({"port": self.served.grpc_port, "secure": self.secure, "pid": self.pid})
        yield seen
        said = await self._probe.ask(within_seconds=60)
        for name, value in said.items():
            setattr(seen, name, value)

    async def metrics(self) -> dict[str, dict[frozenset[str], float]]:
        """Labels and values of the samples, by name."""
        return await self.served.metrics()

    async def under_way(self) -> dict[str, float]:
        """Return the figures that are not zero, but should be in the end."""
        return under_way_on(await self.metrics())

    def judge_beside(self, seen: Seen, *, p99: float | None = None, longest: float | None = STALL_SECONDS) -> None:
        """Check the observations of the client during the attack."""
        judge = self.judge
        judge.exactly("requests lost beside it", len(seen.failures), 0)
        judge.at_least("requests answered beside it", seen.count, 3)
        share = seen.held_up / max(seen.held_up + seen.count, 1)
        if judge.size == "full":
            judge.at_most("share left out, as the machine was late", share, _MOST_LEFT_OUT)
        else:
            judge.shows("share left out, as the machine was late", share)
        judge.shows("p50 beside it", seen.p50 * 1e3, "ms")
        if p99 is None:
            judge.shows("p99 beside it", seen.p99 * 1e3, "ms")
        else:
            judge.within("p99 beside it", seen.p99, p99)
        if longest is None:
            judge.shows("longest beside it", seen.longest * 1e3, "ms")
        else:
            judge.within("longest beside it", seen.longest, longest)

    async def judge_rest(
        self, *, grown_mib: float = FEW_MIB, peak_mib: float | None = None, tracebacks: bool = False
    ) -> None:
        """End the attack, wait until no request is in flight, and check for leaks.

        `tracebacks` allows tracebacks in the log.
        """
        while self._attackers:
            await self._attackers.pop().stop()  # the gRPC library keeps connections for a while
        judge, before, peak = self.judge, self.before, self.now().peak_mib
        left = await settled(self.under_way)
        judge.exactly("left in streams, queues and ledger", left or "nothing", "nothing")
        for what, times in counted_on(await self.metrics()).items():
            judge.shows(what, times)
        after = await flat(self.now)
        judge.shows("share of a CPU", (after.cpu_seconds - before.cpu_seconds) / (after.at - before.at))
        judge.shows("memory before", before.resident_mib, "MiB")
        if peak_mib is None:
            judge.shows("memory grown at its highest", peak - before.resident_mib, "MiB")
        else:
            judge.at_most("memory grown at its highest", peak - before.resident_mib, peak_mib, "MiB")
        judge.at_most("memory grown after", after.resident_mib - before.resident_mib, grown_mib, "MiB")
        judge.at_most("descriptors more", after.descriptors - before.descriptors, _FEW_DESCRIPTORS)
        judge.at_most("threads more", after.threads - before.threads, _FEW_THREADS)
        judge.exactly("the picker runs", self.served.command.running, True)  # noqa: FBT003  the expected value
        said = self.served.command.err
        found = [number for number, line in enumerate(said) if "Traceback" in line]
        if tracebacks:
            judge.shows("tracebacks in its log", len(found))
            return
        judge.exactly("tracebacks in its log", len(found), 0)
        for number in found[:1]:
            print("\n".join(said[number : number + _EXCERPT_LINES]), flush=True)


def under_way_on(page: dict[str, dict[frozenset[str], float]]) -> dict[str, float]:
    """Return the figures that are not zero, but should be in the end, by name."""
    names = {
        "running": "llm_d_epp_request_running",
        "queued": "llm_d_epp_flow_control_queue_size",
        "in the ledger": "llm_d_epp_flow_control_pool_saturation",
    }
    sums = {name: sum(page.get(sample, {}).values()) for name, sample in names.items()}
    return {name: value for name, value in sums.items() if value}


def counted_on(page: dict[str, dict[frozenset[str], float]]) -> dict[str, float]:
    """Return the refusals that the picker has counted, by budget."""
    names = {"refusals": "llm_d_epp_budget_refusals_total"}
    return {
        f"{name} counted by the picker, {', '.join(sorted(labels))}": value
        for name, sample in names.items()
        for labels, value in page.get(sample, {}).items()
        if value
    }


async def settled(under_way: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
    """Return the number of requests in flight, when there are none or after a timeout."""
    end = time.monotonic() + _SETTLE_SECONDS
    while (left := await under_way()) and time.monotonic() < end:  # noqa: ASYNC110  a page has no event
        await asyncio.sleep(0.2)
    return left


async def flat(now: Callable[[], Reading], seconds: float = 5.0) -> Reading:
    """Return the lowest figures within some seconds, because resources are released with a delay."""
    readings = [now()]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(_SAMPLE_SECONDS)
        readings.append(now())
        same = readings[-1].resident_mib >= readings[0].resident_mib - 1
        if len(readings) > 5 and same and readings[-1].descriptors == readings[-5].descriptors:
            break
    return replace(
        readings[-1],
        resident_mib=min(each.resident_mib for each in readings),
        descriptors=min(each.descriptors for each in readings),
        threads=min(each.threads for each in readings),
    )


async def attack_with(attacker: Program, module: str, name: str, **arguments: object) -> dict[str, Any]:
    """Run an attack to its end, and return its report."""
    order = {"module": module, "attack": name, "with": arguments}
    return await attacker.ask(order, within_seconds=_ATTACK_SECONDS)


@contextlib.asynccontextmanager
async def scene(
    judge: Judge,
    *flags: str,
    config: str = WIDE,
    ulimit: str = "",
    endpoints: Sequence[str] | None = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    deaf: bool = False,
) -> AsyncIterator[Scene]:
    """Run a picker with these endpoints, or with a simulated server, warmed up for measurements.

    The configuration is this text, unless the flags name a file, which also names the endpoints if they are None. A
    `deaf` picker can write neither log nor files.
    """
    async with AsyncExitStack() as stack:
        given = (PLAIN, *flags)
        if endpoints is not None:
            pool = ",".join(endpoints) or (await stack.enter_async_context(running(FAST))).address
            given += (f"--endpoints={pool}",)
        if not any(flag.startswith("--config-file") for flag in flags):
            given += (f"--config-text={config}",)
        with _changed(environment):
            if deaf:
                begun = _silent(given, _FULL_DISK)
            else:
                begun = _silent(given, ulimit) if "-v=0" in flags else serving(None, *given, ulimit=ulimit)
            served = await stack.enter_async_context(begun)
        warm = Scene(served, judge, stack, reading(served.command.pid), secure=SECURE in flags)
        async with warm.beside():
            await asyncio.sleep(1.0)
        await until(lambda: _is_idle(served), "the picker is idle")
        forget_peak(warm.pid)
        warm.before = warm.now()
        try:
            yield warm
        except Exception:
            print("the picker said:", *served.command.err[-_EXCERPT_LINES:], sep="\n", flush=True)
            raise


@contextlib.contextmanager
def _changed(environment: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that start inside the block."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            os.environ.pop(name)
        os.environ.update(before)


@contextlib.asynccontextmanager
async def _silent(flags: Sequence[str], ulimit: str) -> AsyncIterator[Served]:
    """Run a picker that cannot report when it is ready."""
    with reserved_ports(3) as ports:
        names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
        own = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
        async with command("serve", *flags, *own, ulimit=ulimit) as process:
            served = Served(process, *ports)
            await until(lambda: _answers(served), "the picker is ready", seconds=60)
            yield served


async def _answers(served: Served) -> bool:
    try:
        return sum((await served.metrics()).get("llm_d_epp_ready_endpoints", {}).values()) > 0
    except OSError:
        return False


async def _is_idle(served: Served) -> bool:
    return not under_way_on(await metrics_on(served.metrics_port))


@dataclass(frozen=True, slots=True)
class Campaign:
    """Context of a row: its size, and the receiver of its figures."""

    judge: Judge
    size: Size
    folder: Path
    """An empty directory."""
    soak_seconds: float

    def of(self, full: int, ci: int) -> int:
        """Return the number for the size of this run."""
        return full if self.size == "full" else ci
