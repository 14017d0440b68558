# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests, and an end for a test that does not end at its time limit."""

import faulthandler
import gc
import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# No test passes or fails on a time. `make test` draws few examples, `make slow` many, both the same ones each time;
# `make properties` draws others each time.
settings.register_profile(
    "few", max_examples=20, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
settings.register_profile("many", settings.get_profile("few"), max_examples=100)
settings.register_profile(
    "random", max_examples=100, stateful_step_count=40, deadline=None, derandomize=False, print_blob=True
)
settings.load_profile("few")

_GRACE_SECONDS = 60.0
"""After a test's time limit, which raises in it: one that waits in its clean-up then waits for ever."""
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep what the process itself writes errors to, which is not what tests write theirs to."""
    config.stash[_STDERR] = os.dup(2)
    gc.disable()  # nothing is garbage before the tests are collected


def pytest_collection_finish() -> None:
    """Let the garbage collector look no more at thousands of collected tests: that was a sixth of all time."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the process with the stacks of all its threads; the test fails by name, and others go on in a new one."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + _GRACE_SECONDS, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
