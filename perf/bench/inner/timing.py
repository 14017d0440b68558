# SPDX-License-Identifier: Apache-2.0
"""Helpers of these programs: CPU time of a call, and figures on standard output."""

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable

import structlog

SAMPLES = 7


def quick() -> bool:
    """Parse the command line; return whether it requests few repetitions."""
    parser = argparse.ArgumentParser(description="Measure parts of this program, and print the figures as JSON.")
    parser.add_argument("--quick", action="store_true", help="with few repetitions")
    return parser.parse_args().quick is True


def no_log_lines() -> None:
    """Disable logging."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def microseconds(call: Callable[[], object], rounds: int, samples: int = SAMPLES) -> float:
    """Return the CPU time of a call: the minimum of several means."""
    call()
    return min(_mean(call, rounds) for _ in range(samples)) * 1e6


def _mean(call: Callable[[], object], rounds: int) -> float:
    started = time.process_time()
    for _ in range(rounds):
        call()
    return (time.process_time() - started) / rounds


async def turns(work: Awaitable[object]) -> tuple[float, float]:
    """Return the CPU time of work and of its longest loop iteration, in milliseconds, including the measurement.

    A task that is always ready measures the iterations: the time between two of its runs.
    """
    task = asyncio.ensure_future(work)
    started, last, longest = time.process_time(), time.thread_time(), 0.0
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await task
    return (time.process_time() - started) * 1e3, longest * 1e3


def tell(figures: dict[str, float]) -> None:
    """Print the figure of each row."""
    print(json.dumps(figures))
