# SPDX-License-Identifier: Apache-2.0
"""A picker of pods in a real API server: time until all are known, time from a change to routing, memory.

    python tests/bench/bench_kube.py

Needs the programs of `make kube-assets`; without them it says so and ends.
"""

import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

import structlog
import uvloop

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "go"), str(TESTS / "kube"), str(TESTS / "e2e"), str(TESTS / "unit" / "extproc")]

from build_assets import ASSETS  # noqa: E402  found by the line above
from cluster.running import running  # noqa: E402
from cluster.space import Space, space_in  # noqa: E402
from cluster.users import PICKER_ROLE  # noqa: E402

from epp.cli.running import collect_rarely  # noqa: E402
from epp.config import load_text  # noqa: E402
from epp.director import Cause  # noqa: E402
from epp.discovery import PoolName  # noqa: E402
from epp.extproc.settings import ServerSettings  # noqa: E402
from epp.framework import Headers  # noqa: E402
from epp.picker import KubernetesSettings, Picker, PickerSettings  # noqa: E402

COUNTS = (100, 5_000)
CHANGES = 60
REQUEST_SECONDS = 0.005
HEADERS = Headers([(":path", "/v1/completions"), ("x-request-id", "bench")])
BODY = b'{"model":"m","prompt":"hello hello hello hello"}'
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]
"""


def memory_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def address(number: int) -> str:
    return f"127.78.{number // 250}.{number % 250 + 1}"


async def route(picker: Picker) -> None:
    """Route 200 requests a second, as if they came from a gateway."""
    while True:
        routing = picker.director.route(HEADERS, BODY, None)
        routing.complete(Cause.NATURAL)  # type: ignore[union-attr]
        await asyncio.sleep(REQUEST_SECONDS)


class Changes:
    """Tells when the next change of the pool was made."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self._made: asyncio.Future[float] | None = None
        picker.store.subscribe(self._changed)

    def next(self) -> asyncio.Future[float]:
        """Return the time at which a snapshot for requests has the next change."""
        self._made = asyncio.get_running_loop().create_future()
        return self._made

    def _changed(self, _change: object) -> None:
        if self._made is not None and not self._made.done():
            self._picker.store.snapshot()
            self._made.set_result(time.perf_counter())


async def measured(space: Space, directory: Path, count: int) -> None:
    """Print one row of the table."""
    user = await space.user("picker", PICKER_ROLE)
    settings = KubernetesSettings(
        namespace=space.namespace,
        source=PoolName("pool", space.namespace),
        replica="bench",
        kubeconfig=user.kubeconfig(directory / f"kubeconfig-{count}"),
    )
    server = ServerSettings(f"unix:{directory}/{count}", secure=False)
    picker = Picker(
        PickerSettings(server=server, config=load_text(CONFIG), kubernetes=settings, refresh_metrics_seconds=3600.0)
    )
    started = time.perf_counter()
    await picker.start()
    synced = time.perf_counter() - started
    requests = asyncio.create_task(route(picker))
    changes, times = Changes(picker), []
    joined = changes.next()
    pod = await space.pod("moving", address(count))
    await joined
    for number in range(CHANGES):
        made, asked = changes.next(), time.perf_counter()
        await space.ready(pod, ready=number % 2 == 1)
        times.append((await made - asked) * 1e3)
    requests.cancel()
    times.sort()
    print(
        f"{count:>6} {synced:>8.2f} s {times[len(times) // 2]:>8.1f} {times[len(times) * 95 // 100]:>8.1f} "
        f"{times[-1]:>8.1f} ms {memory_mib():>8.0f} MiB"
    )
    await picker.stop(drain_seconds=0)


async def main() -> None:
    """Print the table."""
    programs = ASSETS.directory()
    if ASSETS.missing(programs):
        print(f"not run: {ASSETS.remedy(programs)}")
        return
    collect_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print("  pods  all known   to routing: p50   p95      max       memory, beside 200 requests a second")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        data = directory / "cluster"
        data.mkdir()
        async with running(programs, data) as cluster:
            await cluster.install()
            for count in COUNTS:
                async with space_in(cluster) as space:
                    await space.pool()
                    await space.pods([address(number) for number in range(count)])
                    await measured(space, directory, count)


if __name__ == "__main__":
    uvloop.run(main())
