# SPDX-License-Identifier: Apache-2.0
"""2,000 pods: made at once while requests flow, and found by a picker that starts among them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import command
from tests.support.kube.pickers import Picker, picker_in, pool_of
from tests.support.load import load_on
from tests.support.ports import reserved_ports
from tests.support.waiting import until
from tests.support.world import MODEL

PODS = 2_000
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- {{type: metrics-data-source, parameters: {{port: {port}}}}}
- type: core-metrics-extractor
dataLayer:
  sources:
  - {{pluginRef: metrics-data-source, extractors: [{{pluginRef: core-metrics-extractor}}]}}
"""
ENOUGH_SECONDS = 300.0
"""More than anything takes on a slow machine; what it took is printed."""

pytestmark = pytest.mark.timeout(1200)


def address(number: int) -> str:
    """Return an address of loopback: one server on all of them serves every pod."""
    return f"127.77.{number // 250}.{number % 250 + 1}"


def memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


@pytest.fixture
def port() -> Iterator[int]:
    """The port of all pods, each at an address of its own."""
    with reserved_ports(1) as (port,):
        yield port


async def test_2_000_pods_join_while_requests_flow_and_a_picker_that_starts_finds_them_all(
    space, pages, port, tmp_path
):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(port=pages))
    flags = (*pool_of(space), f"--config-file={config}", "-v=1")
    await space.pool(ports=(port,))
    first = await space.pod("first", address(PODS))
    everywhere = ("--host=0.0.0.0", f"--port={port}", "--preset=h100", "--name=all", f"--model={MODEL}")
    async with command("sim-server", *everywhere) as server:
        await server.says(str(port))
        async with picker_in(space, tmp_path, *flags) as picker, load_on(picker.url, short=2, long=0) as load:
            await picker.uses("first-rank-0")
            await load.reaches("all")
            started = time.monotonic()
            await space.pods([address(number) for number in range(PODS)])
            made = time.monotonic()
            await picker.knows(PODS + 1)
            known = time.monotonic()
            await until(lambda: _all_join(picker), "all endpoints have joined", seconds=ENOUGH_SECONDS)
            joined = time.monotonic()
            answered = len(load.answers)
            await load.answered_after(joined)
            print(  # noqa: T201  for pytest -s
                f"\n{PODS} pods made in {made - started:.1f} s, known {known - made:.1f} s and in the pool "
                f"{joined - made:.1f} s after the last; {answered} requests answered meanwhile, none failed; "
                f"{memory_mib(picker.command.pid):.0f} MiB"
            )
            await space.ready(first, ready=False)
            await until(lambda: _has_no_first(picker), "the pod that is not ready has left", seconds=ENOUGH_SECONDS)

        started = time.monotonic()
        async with picker_in(space, tmp_path, *flags) as late:
            took = time.monotonic() - started
            print(f"another picker ready, and its Envoy, {took:.1f} s after its start")  # noqa: T201
            await late.knows(PODS + 1)
            assert len(await late.endpoints()) == PODS  # all but the one that is not ready
            assert await late.ask() == "all"


async def _all_join(picker: Picker) -> bool:
    return len(await picker.endpoints()) == PODS + 1


async def _has_no_first(picker: Picker) -> bool:
    return "first-rank-0" not in await picker.endpoints()
