# SPDX-License-Identifier: Apache-2.0
"""Limits of the process: file descriptors, and garbage collection."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from epp.app import Picker, PickerSettings
from epp.extproc.settings import ServerSettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from epp.runtime import supervisor as process


@pytest.fixture
def soft_limit() -> Iterator[Callable[[int], None]]:
    """Set the soft limit of this process; it is put back after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_soft_limit_is_raised_to_the_hard_one(soft_limit):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit(hard - 1)
    process.raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    process.raise_limit()
    assert process.limit() == hard


@pytest.mark.parametrize(
    ("most", "kept", "brief"),
    [
        (4096, 3808, 3840),  # 256 for others, 32 for turns
        (1024, 736, 768),
        (512, 224, 256),
        (128, 56, 64),  # half for others, an eighth of that for turns
    ],
)
def test_polling_leaves_descriptors_to_others(soft_limit, most, kept, brief):
    soft_limit(most)
    assert process.polling_bound(kept=True) == kept
    assert process.polling_bound(kept=False) == brief


@pytest.mark.parametrize("most", [128, 512, 1024, 4096])
def test_shortage_begins_where_connections_no_longer_fit_and_ends_with_the_limit_it_names(soft_limit, most):
    soft_limit(most)
    bound = process.polling_bound(kept=True)
    assert bound is not None
    fits = bound - 32  # for the listeners and pipes of a picker
    assert process.shortage(fits) is None
    told = process.shortage(fits + 1)
    assert told is not None
    assert f"polling needs {fits + 1} connections" in told
    named = int(told.partition("raise the limit to ")[2].split()[0])
    soft_limit(named)
    assert process.shortage(fits + 1) is None


FROZEN = """
import gc
from epp.runtime import supervisor as process
process.collect_rarely()
imported = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
cycle = []; cycle.append(cycle); del cycle
process.freeze()
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


QUIET = """
import gc
from epp.runtime import supervisor as process
process.collect_rarely()
full = process.FullCollections()
ended = []
gc.callbacks.append(lambda phase, about: ended.append(phase) if about["generation"] == 2 else None)

def live_for_long(count):
    "Make so many cycles that outlive their youth, and let them go."
    made = []
    for _ in range(count):
        cycle = [[] for _ in range(10)]
        cycle.append(cycle)
        made.append(cycle)
    gc.collect(1)

live_for_long(1000)
assert not full.check(), "it is not due"
waiting = []
while gc.get_count()[2] < 250:
    waiting.append([[], []])
assert not ended, "Python itself does none"
assert full.expected_seconds > 0.1, full.expected_seconds
assert not full.check(), "it would look at half a million objects that wait"
waiting.clear()
assert full.expected_seconds < 0.005, full.expected_seconds
gc.set_debug(gc.DEBUG_SAVEALL)
assert full.check(), "it is quiet now"
assert len(ended) == 2  # a beginning and an end
assert sum(type(found) is list and len(found) == 11 for found in gc.garbage) == 1000
assert not full.check()
"""


def test_full_collection_waits_until_few_objects_are_left():
    subprocess.run([sys.executable, "-c", QUIET], check=True, timeout=60)


PATIENT = """
import gc
from epp.runtime import supervisor as process
process.collect_rarely()
full = process.FullCollections()
waiting = [[] for _ in range(200_000)]
looks = 0
while not full.check():
    looks += 1
    for _ in range(50):  # of collections of the middle generation
        gc.collect(1)
assert 5 < looks < 1000, looks
"""


def test_full_collection_comes_although_it_is_never_quiet():
    subprocess.run([sys.executable, "-c", PATIENT], check=True, timeout=60)


SWEPT = """
import gc
from epp.runtime import supervisor as process
process.collect_rarely()
looked_at = []
def note(phase, about):
    if phase == "start":
        looked_at.append(sum(len(gc.get_objects(each)) for each in range(about["generation"] + 1)))
gc.callbacks.append(note)
full, sweeps = process.FullCollections(), process.SWEEPS
pool = [[] for _ in range(60_000)]
gc.collect(1)

def replace(swept):
    "Put other objects in place of those of the pool; return how many a collection has looked at, at most."
    gc.collect(1)
    looked_at.clear()
    for place in range(len(pool)):
        pool[place] = []
        if swept and place % 1_000 == 0 and sweeps.is_due(0.001):
            sweeps.sweep()
    gc.collect(1)
    return max(looked_at)

assert replace(swept=False) > 55_000, "as many come as go: Python sees no need to look"
assert replace(swept=True) < 20_000
assert sweeps.count == 15
pool.clear()
for _ in range(300):
    sweeps.sweep()
assert not full.check(), "sweeps are no reason for a full one"
for _ in range(250):
    gc.collect(1)
assert full.check()
assert sweeps.count == 0
"""


def test_what_long_work_makes_is_looked_at_a_little_at_a_time():
    subprocess.run([sys.executable, "-c", SWEPT], check=True, timeout=60)


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
