# SPDX-License-Identifier: Apache-2.0
"""`epp demo` from outside: what it prints works, and nothing of it stays."""

import asyncio
import contextlib
import os
import pty
import shlex
import shutil
import termios
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.commands import Command, children, command, is_running
from tests.support.config_files import picker_config
from tests.support.waiting import until

QUIET = "--traffic=0"
ANY_PORTS = ("--listen=127.0.0.1:0", "--admin-port=0")


@contextlib.asynccontextmanager
async def demo_in(directory, *flags: str, **more) -> AsyncIterator[Command]:
    """Run a demo on any ports, with temporary files in the directory; it leaves neither files nor processes behind."""
    offspring: dict[int, str] = {}
    async with command("demo", *ANY_PORTS, *flags, TMPDIR=str(directory), **more) as demo:
        yield demo
        if demo.running:
            offspring = children(demo.pid)
            demo.interrupt()
        assert await demo.end() == 0
    assert not any(is_running(pid) for pid in offspring)
    assert list(directory.iterdir()) == []
    assert "Traceback" not in str(demo)


async def test_printed_command_gets_an_answer_and_ctrl_c_leaves_nothing_behind(directory):
    async with demo_in(directory, "--traffic=1") as demo:
        line = await demo.says("curl -i")
        status, headers = await run(shlex.split(line))
        assert status == 200
        assert headers["x-sim-server"] == "t4"  # idle, and the cheapest
        program, *arguments = shlex.split(await demo.says(" explain my-request"))
        assert os.access(program, os.X_OK)
        if arguments[:2] == ["-m", "epp"]:
            del arguments[:2]
        async with command(*arguments) as explained:
            assert "cost-aware-spill" in await explained.says("cost-aware-spill: ")
            assert "my-request" in str(explained)
            assert await explained.end() == 0
        first, second, third = (await demo.says("prefix hits")).split(" | ")
        assert first.startswith("h100 up: waiting ")
        assert second.startswith("a100-3g.20gb up: waiting ")
        assert third.startswith("t4 up: waiting ")
        assert "after cost-aware-spill" in await demo.says("last request: t4, default: ")
        assert len(children(demo.pid)) == 7  # Envoy, three servers, and three that get copies by round robin


async def run(arguments: list[str]) -> tuple[int, dict[str, str]]:
    """Do what this command line of curl does; return the status and the headers of the answer."""
    if shutil.which(arguments[0]) is None:
        _, _, url, _, header, _, request_id, _, body = arguments
        headers = dict(each.split(": ", 1) for each in (header, request_id))
        async with aiohttp.ClientSession() as http, http.post(url, headers=headers, data=body) as response:
            return response.status, dict(response.headers)
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    head, _, _ = output.decode().partition("\r\n\r\n")
    first, *fields = head.splitlines()
    return int(first.split()[1]), dict(field.split(": ", 1) for field in fields)


async def test_terminal_gets_a_table_and_the_demo_ends_in_its_time(directory):
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 80))
    async with demo_in(directory, "--duration=600ms", QUIET, terminal=terminal, TERM="xterm-256color") as demo:
        os.close(terminal)
        drawn = await asyncio.to_thread(read_all, screen)
        await demo.end()
    heading = next(line for line in drawn.splitlines() if "endpoint" in line and "hits" in line)
    assert heading.index("wait") < heading.index("KV") < heading.index("hits")
    assert "last request: none yet" in drawn
    for name in ("h100", "a100-3g.20gb", "t4", "4.25", "1.00", "0.53"):
        assert name in drawn.split("hits", 1)[1]
    assert "…" not in drawn


async def test_lines_of_the_log_are_above_the_table_and_the_table_has_the_width(directory):
    config = directory / "config.yaml"
    good = picker_config("plugins: [{type: queue-scorer}]")
    config.write_text(good)
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 120))
    pieces: list[bytes] = []

    def drawn() -> str:
        return b"".join(pieces).decode(errors="replace")

    async with command(
        "demo", *ANY_PORTS, QUIET, f"--config-file={config}", terminal=terminal, TERM="xterm-256color"
    ) as demo:
        os.close(terminal)
        reading = asyncio.create_task(asyncio.to_thread(read_all, screen, pieces))
        await until(lambda: "last request" in drawn(), "the table is drawn")
        config.write_text(good.replace("queue-scorer", "no-such-scorer"))
        await until(lambda: "hits" in drawn().partition("configuration rejected")[2], "it is drawn again, below a line")
        demo.interrupt()
        await reading
        assert await demo.end() == 0
    heading = next(line for line in drawn().splitlines() if "endpoint" in line and "hits" in line)
    assert len(heading.rstrip()) > 90


def read_all(screen: int, pieces: list[bytes] | None = None) -> str:
    """What is written on a terminal until nobody has it open any more."""
    pieces = [] if pieces is None else pieces
    with os.fdopen(screen, "rb", buffering=0) as file:
        try:
            while piece := file.read(65_536):
                pieces.append(piece)
        except OSError:  # EIO: how Linux says that the other side is closed
            pass
    return b"".join(pieces).decode()


@pytest.mark.slow
async def test_demo_of_two_clusters_shows_where_requests_go(directory):
    async with demo_in(directory, "--clusters", "--traffic=8") as demo:
        await demo.says("Two simulated clusters, east and west")
        await demo.says("both clusters have room")
        assert "best of 4" in await demo.says("last request: east-")
        await demo.says("east is full")
        await demo.says("last request: west-")
        await demo.says("east has failed")
        row = await demo.says("east-1 in east unreachable")
        assert "west-1 in west up" in row
        await demo.says("east is back")
        await demo.says("last request: east-")


@pytest.mark.slow
async def test_demo_of_two_tenants_shows_that_a_flood_waits_and_the_other_does_not(directory):
    async with demo_in(directory, "--tenants", "--traffic=24") as demo:
        await demo.says("shared fairly by two tenants: steady and flood")
        await demo.says("both tenants send few")

        def lines() -> list[str]:
            return [line for line in demo.out if line.startswith("steady sent ")]

        def flood_is_refused() -> list[str]:
            return [line for line in lines() if numbers(line, "flood")["refused"] > 0]

        await until(flood_is_refused, "requests of the flood are refused", seconds=90)
        line = flood_is_refused()[0]
        assert numbers(line, "flood")["waiting"] > numbers(line, "steady")["waiting"]
        assert numbers(line, "steady")["answered"] > 0
        assert numbers(line, "steady")["refused"] == 0
        assert len(children(demo.pid)) == 3  # Envoy and two servers


def numbers(line: str, tenant: str) -> dict[str, int]:
    """The numbers of a tenant in the line of all."""
    (found,) = [part.split() for part in line.split(" | ") if part.startswith(f"{tenant} ")]
    return {name: int(found[found.index(name) + 1]) for name in ("sent", "answered", "waiting", "refused")}
