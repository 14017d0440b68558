# SPDX-License-Identifier: Apache-2.0
"""No room on the disk, or no memory: each is said, and the process stays up where it runs already.

`ulimit -f` counts blocks of 512 bytes that a file may have, and needs no rights, unlike a small file system.
"""

import asyncio
import contextlib
import json
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import grpc
import pytest

from epp.lab.sim.server import RunningSim
from tests.support.commands import command
from tests.support.config_files import endpoints_file, picker_config, with_pool
from tests.support.exchanges import request_body
from tests.support.serving import PLAIN, Exchange, destination_of, exchange, first_message, serving
from tests.support.transports import over_asyncio
from tests.support.waiting import until
from tests.support.world import question

CONFIG = picker_config("""
plugins: [{type: queue-scorer}]
""")
ROOM_BYTES = 190 * 1024 * 1024
"""Memory that a picker may still take."""
GATEWAY = ("gateway", "--listen=127.0.0.1:0", "--cluster-type=override-host")


@contextlib.contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", directory], check=False)  # noqa: S607  found on the PATH
    if mounted.returncode:
        pytest.skip("mounting takes the rights of root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)  # noqa: S607  the same


START = ("gateway", "--endpoints=127.0.0.1:9", "--listen=127.0.0.1:0")


async def test_gateway_on_a_full_disk_ends_with_what_could_not_be_written(tmp_path):
    with small_disk(tmp_path, "4k"):  # room for a directory, not for Envoy's configuration
        async with command(*START, TMPDIR=str(tmp_path)) as gateway:
            assert await gateway.end() == 1
            assert gateway.error.startswith(f"error: cannot write {tmp_path}/epp-envoy-")
            assert gateway.error.endswith(
                "/envoy.json: No space left on device: free some space, or set TMPDIR to another directory"
            )
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("blocks", "what"), [(0, "a temporary directory"), (1, "envoy.json")])
async def test_gateway_that_may_not_write_files_ends_with_what_it_could_not_write(tmp_path, blocks, what):
    async with command(*START, ulimit=f"-f {blocks}", TMPDIR=str(tmp_path)) as gateway:
        assert await gateway.end() == 1
        assert "error: cannot write " in gateway.error
        assert what in gateway.error
        assert gateway.error.endswith("free some space, or set TMPDIR to another directory")
    assert list(tmp_path.iterdir()) == []


def pool_of(sim: RunningSim, more: int) -> dict[str, tuple[str, dict[str, str]]]:
    others = {f"e{number}": (f"127.0.9.{number + 1}:9", {}) for number in range(more)}
    return {"sim": (sim.address, {}), **others}


async def test_gateway_whose_disk_fills_up_serves_on_and_writes_when_there_is_room(sim, tmp_path):
    pool = endpoints_file(tmp_path / "pool.yaml", **pool_of(sim, 0))
    config, eds = tmp_path / "config.yaml", tmp_path / "eds" / "endpoints.json"
    eds.parent.mkdir()
    config.write_text(with_pool(CONFIG, pool))
    flags = (f"--config-file={config}", f"--eds-file={eds}")
    async with command(*GATEWAY, *flags, ulimit="-f 40") as gateway, aiohttp.ClientSession() as client:
        url = json.loads(await gateway.says('"msg":"Envoy ready"'))["address"]

        async def serves() -> bool:
            async with client.post(f"http://{url}/v1/chat/completions", json=question()) as answer:
                await answer.read()
                return answer.status == 200

        assert await serves()

        def written() -> int:
            """Number of endpoints in the file, which is whole at any time."""
            return len(json.loads(eds.read_text())["resources"][0]["endpoints"][0]["lb_endpoints"])

        endpoints_file(pool, **pool_of(sim, 240))  # some 30 KiB

        line = json.loads(await gateway.says('"msg":"EDS file not written, retrying"'))
        assert line["error"] == "File too large"
        assert 1 <= written() < 241
        await until(serves, "the server is chosen, and none of those that are down")
        assert [path.name for path in eds.parent.iterdir()] == ["endpoints.json"]

        endpoints_file(pool, **pool_of(sim, 120))

        await until(lambda: written() == 121, "the file is written")
        await until(serves, "it serves")
        gateway.interrupt()
        assert await gateway.end() == 0


PIECE = b"x" * 1_000_000
PIECES = 30
FLOODS = 20


def limit_memory(pid: int, more_bytes: int) -> None:
    """Let a process have so much more address space than it has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


async def flooded(call: Exchange) -> bool:
    """Send most of a large body, and not its end; return whether the picker took it."""
    try:
        await call.write(first_message())
        for _ in range(PIECES):
            await call.write(request_body(PIECE, end=False))
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True


@over_asyncio  # grpcio allocates in C++, which ends the process where memory is missing
async def test_requests_for_which_memory_is_missing_fail_alone(sim):
    """Twenty bodies of 30 MB, open all at once, are three times what there is room for."""
    async with serving(sim, PLAIN) as served:
        async with served.channel() as channel, served.channel() as crowd:
            assert await destination_of(channel) == sim.address
            limit_memory(served.command.pid, ROOM_BYTES)
            calls = [exchange(crowd) for _ in range(FLOODS)]
            async with asyncio.timeout(60):
                taken = await asyncio.gather(*map(flooded, calls))
            assert not all(taken)

            assert await destination_of(channel) == sim.address
            for call in calls:
                call.cancel()
            assert await destination_of(channel) == sim.address
        assert served.command.running
