# SPDX-License-Identifier: Apache-2.0
"""A picker with a real Kubernetes API server: time to the first full pool, time from a change to routing, memory.

Requires the programs of `make kube-assets`; without them, no figures are printed.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.append(str(Path(__file__).parents[3]))

from timing import no_log_lines, quick, tell

from epp.app import KubernetesSettings, Picker, PickerSettings
from epp.config import load_text
from epp.extproc.settings import ServerSettings
from epp.framework import Headers
from epp.pool.discovery import PoolName
from epp.routing.director import Cause
from epp.runtime.supervisor import collect_rarely
from tests.kube.build_assets import ASSETS
from tests.support.kube.running import running
from tests.support.kube.space import Space, space_in
from tests.support.kube.users import PICKER_ROLE

PODS = 5000
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
    """Route 200 requests per second, as if they came from a gateway."""
    while True:
        routing = picker.director.route(HEADERS, BODY, None)
        routing.complete(Cause.NATURAL)  # type: ignore[union-attr]
        await asyncio.sleep(REQUEST_SECONDS)


class Changes:
    """Records the time of the next change of the pool."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self._made: asyncio.Future[float] | None = None
        picker.store.subscribe(self._changed)

    def next(self) -> asyncio.Future[float]:
        """Return the time at which a snapshot contains the next change."""
        self._made = asyncio.get_running_loop().create_future()
        return self._made

    def _changed(self, _change: object) -> None:
        if self._made is not None and not self._made.done():
            self._picker.store.snapshot()
            self._made.set_result(time.perf_counter())


async def measured(space: Space, directory: Path, *, pods: int, changes: int) -> dict[str, float]:
    """Return the figures of a pool of this size under 200 requests per second."""
    user = await space.user("picker", PICKER_ROLE)
    settings = KubernetesSettings(
        namespace=space.namespace,
        source=PoolName("pool", space.namespace),
        replica="bench",
        kubeconfig=user.kubeconfig(directory / "kubeconfig"),
    )
    server = ServerSettings(f"unix:{directory}/picker", secure=False)
    picker = Picker(
        PickerSettings(server=server, config=load_text(CONFIG), kubernetes=settings, refresh_metrics_seconds=3600.0)
    )
    started = time.perf_counter()
    await picker.start()
    synced = time.perf_counter() - started
    requests = asyncio.create_task(route(picker))
    made, times = Changes(picker), []
    joined = made.next()
    pod = await space.pod("moving", address(pods))
    await joined
    for number in range(changes):
        change, asked = made.next(), time.perf_counter()
        await space.ready(pod, ready=number % 2 == 1)
        times.append((await change - asked) * 1e3)
    requests.cancel()
    times.sort()
    await picker.stop(drain_seconds=0)
    return {
        "kube-known": synced,
        "kube-change-p50": times[len(times) // 2],
        "kube-change-p95": times[len(times) * 95 // 100],
        "kube-memory": memory_mib(),
    }


async def main() -> None:
    """Print the figures."""
    few = quick()
    programs = ASSETS.directory()
    if ASSETS.missing(programs):
        tell({})
        return
    collect_rarely()
    no_log_lines()
    pods = 100 if few else PODS
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        data = directory / "cluster"
        data.mkdir()
        async with running(programs, data) as cluster:
            await cluster.install()
            async with space_in(cluster) as space:
                await space.pool()
                await space.pods([address(number) for number in range(pods)])
                tell(await measured(space, directory, pods=pods, changes=10 if few else CHANGES))


if __name__ == "__main__":
    uvloop.run(main())
