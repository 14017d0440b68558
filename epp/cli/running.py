# SPDX-License-Identifier: Apache-2.0
"""Execution of commands: the event loop until a signal, and expected errors as one line."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import typer

from epp.runtime.followed_files import RELOADS
from epp.runtime.supervisor import collect_in_quiet_moments, collect_rarely, raise_limit


def run(work: Callable[[asyncio.Event], Awaitable[None]], *expected: type[Exception]) -> None:
    """Run `work` on uvloop; Ctrl-C and SIGTERM set the event. Expected errors end with exit code 1.

    SIGHUP reloads certificates and configuration, or stops the command if it runs in a terminal, because a closing
    terminal sends SIGHUP. SIGUSR1 and SIGUSR2 are ignored.
    """
    sys.setswitchinterval(0.001)  # limits the time that the event loop waits for a thread that renders metrics
    collect_rarely()
    raise_limit()
    with exit_on(*expected):
        if sys.platform == "win32":
            asyncio.run(_until_signalled(work))
        else:
            import uvloop  # noqa: PLC0415  not available on Windows

            uvloop.run(_until_signalled(work))


async def _until_signalled(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if sys.platform != "win32":
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # set by nohup
            in_terminal = sys.stdin is not None and sys.stdin.isatty()
            loop.add_signal_handler(signal.SIGHUP, stop.set if in_terminal else RELOADS.request)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, lambda: None)
    collecting = asyncio.create_task(collect_in_quiet_moments())
    try:
        await work(stop)
    finally:
        collecting.cancel()


@contextmanager
def exit_on(*expected: type[Exception]) -> Iterator[None]:
    """Print an expected error as one line and exit with code 1."""
    try:
        yield
    except expected as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
