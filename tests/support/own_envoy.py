# SPDX-License-Identifier: Apache-2.0
"""An Envoy with a configuration of the test's own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from epp.lab.gateway.envoy import find_envoy
from tests.support.waiting import until


@asynccontextmanager
async def own_envoy(config: Mapping[str, object], directory: Path, port: int) -> AsyncIterator[None]:
    """Run it until the block ends, which begins once it listens on its port."""
    path = directory / "own-envoy.json"
    path.write_text(json.dumps(config))
    arguments = ("-c", str(path), "--disable-hot-restart", "--concurrency", "1", "-l", "error")
    envoy = await asyncio.create_subprocess_exec(find_envoy(), *arguments, stderr=asyncio.subprocess.DEVNULL)

    async def listens() -> bool:
        assert envoy.returncode is None, "Envoy has ended"
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    try:
        await until(listens, "Envoy listens")
        yield
    finally:
        if envoy.returncode is None:
            envoy.kill()
        await envoy.wait()
