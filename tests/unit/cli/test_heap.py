# SPDX-License-Identifier: Apache-2.0
"""What exists when a picker becomes ready is never looked at by the garbage collector again."""

import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from epp.discovery import StaticDiscovery, parse_targets
from epp.extproc.server import ServerSettings
from epp.picker import Picker, PickerSettings

FROZEN = """
import gc
from epp.cli import heap
heap.collect_rarely()
imported = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
cycle = []; cycle.append(cycle); del cycle
heap.freeze()
assert gc.get_freeze_count() >= imported + 1000
assert gc.get_threshold()[0] > 700
assert gc.isenabled()
kept.append(kept)
del kept
gc.set_debug(gc.DEBUG_SAVEALL)
gc.collect()
assert not [found for found in gc.garbage if type(found) is list]
"""


def test_heap_is_frozen_without_its_garbage():
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=60)


@pytest.mark.asyncio
async def test_hook_is_called_once_with_a_full_pool_before_the_picker_is_ready(tmp_path):
    called = []

    def hook() -> None:
        called.append((len(picker.store.endpoints), [entry["event"] for entry in logs]))

    server = ServerSettings(f"unix:{tmp_path}/picker.sock")
    discovery = StaticDiscovery(parse_targets("127.0.0.1:1,127.0.0.1:2"))
    with capture_logs() as logs:
        picker = Picker(PickerSettings(server=server, discovery=discovery, before_ready=hook))
        await picker.start()
        await picker.stop(drain_seconds=0)
    ((endpoints, events),) = called
    assert endpoints == 2
    assert "ready" not in events
    assert "ready" in [entry["event"] for entry in logs]
