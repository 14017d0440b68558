# SPDX-License-Identifier: Apache-2.0
"""Calls that take too long are ended, whatever they do; and nothing else is."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from epp.decisions.time_limit import OverTimeError, TimeLimit

SECONDS = 0.01
SOON = 5.0
"""Of a call that has no end by itself; wide, as the machine may be busy."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """Lend the signal, which the time limit of tests has."""
    handler, left = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.fixture
def limit(alarm) -> Iterator[TimeLimit]:
    limit = TimeLimit()
    limit.open()
    assert limit.works
    yield limit
    limit.close()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def compute_for_ever() -> None:
    while True:
        pass


def go_on_after_any_error() -> None:
    while True:
        with suppress(Exception):
            compute_for_ever()


def go_on_once() -> None:
    with suppress(BaseException):
        compute_for_ever()
    compute_for_ever()


def sleep_for_long() -> None:
    time.sleep(1000)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@pytest.mark.parametrize("call", [compute_for_ever, go_on_after_any_error, go_on_once, sleep_for_long, wait_for_a_lock])
def test_gie_9_call_without_an_end_is_ended(limit, call):
    started = time.perf_counter()
    with pytest.raises(OverTimeError):
        limit.call(SECONDS, call)
    assert time.perf_counter() - started < SOON


def test_call_in_time_returns_its_result_and_nothing_is_ended_later(limit):
    assert limit.call(SECONDS, divmod, 7, 2) == (3, 1)
    assert not limit.is_over()
    ended = time.perf_counter() + 5 * SECONDS
    while time.perf_counter() < ended:
        pass


def test_error_of_a_call_passes_and_nothing_is_ended_later(limit):
    with pytest.raises(ZeroDivisionError):
        limit.call(SECONDS, divmod, 7, 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_signal_of_somebody_else_is_left_to_them():
    before = signal.getsignal(signal.SIGALRM)
    handler = before if callable(before) else signal.signal(signal.SIGALRM, lambda *_: None)
    there = signal.getsignal(signal.SIGALRM)
    limit = TimeLimit()
    limit.open()
    assert not limit.works
    assert limit.call(SECONDS, divmod, 7, 2) == (3, 1)
    limit.close()
    assert signal.getsignal(signal.SIGALRM) is there
    signal.signal(signal.SIGALRM, handler)


def test_other_threads_have_the_time_but_no_signal():
    found = []

    def look() -> None:
        limit = TimeLimit()
        limit.open()
        limit.call(0.001, time.sleep, 0.05)
        found.append((limit.works, limit.is_over()))
        limit.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(False, True)]
