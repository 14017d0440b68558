"""Runs a command's coroutine until it is told to stop, and turns its errors into one clear line."""

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine

import typer

from epp.descriptors import raise_limit

_SWITCH_SECONDS = 0.001


def run(work: Callable[[asyncio.Event], Coroutine[object, object, None]], *expected: type[Exception]) -> None:
    """Run `work` on uvloop; the event it gets is set by Ctrl-C or SIGTERM. Expected errors end with exit code 1."""
    sys.setswitchinterval(_SWITCH_SECONDS)  # the event loop waits so long for a thread that renders metrics
    gc.freeze()  # what is imported by now stays: a full collection need not look at it, with the event loop stopped
    raise_limit()
    try:
        _run(_until_signalled(work))
    except expected as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


async def _until_signalled(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await work(stop)


def _run(main: Coroutine[object, object, None]) -> None:
    if sys.platform == "win32":
        asyncio.run(main)
    else:
        import uvloop  # noqa: PLC0415  not to be had on Windows

        uvloop.run(main)
