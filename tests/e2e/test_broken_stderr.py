# SPDX-License-Identifier: Apache-2.0
"""A picker whose log nobody can take goes on working, and says so where it can."""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.support.commands import PATIENCE_SECONDS
from tests.support.world import until

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{{type: file-discovery, parameters: {{path: {path}, watchFile: true}}}}]
dataLayer: {{injectDefaults: false, discovery: {{pluginRef: file-discovery}}}}
"""


def endpoints(count: int) -> str:
    entries = [{"name": f"e{n}", "address": f"10.0.0.{n + 1}", "port": 8000} for n in range(count)]
    return json.dumps({"endpoints": entries})


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer.partition("\r\n\r\n")[2]


async def test_edits_are_applied_though_no_log_line_can_be_written(tmp_path, port):
    pool, config = tmp_path / "endpoints.json", tmp_path / "config.yaml"
    pool.write_text(endpoints(1))
    config.write_text(CONFIG.format(path=pool))
    writer = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "epp"),
        *("serve", "--config-file", str(config), "--secure-serving=false"),
        *("--grpc-port=0", "--grpc-health-port=0", f"--metrics-port={port}"),
        stderr=writer,
    )
    os.close(writer)

    async def state() -> dict[str, object]:
        try:
            return json.loads(await get(port, "/healthz"))
        except (OSError, ValueError):
            return {}

    async def sees(count: int) -> None:
        async def seen() -> bool:
            assert process.returncode is None
            health = await state()
            return health.get("endpoints") == count and bool(health["ready"])

        await until(seen, f"the picker has {count} endpoints", PATIENCE_SECONDS)

    try:
        await sees(1)
        for count in (2, 3):
            fresh = tmp_path / "fresh"
            fresh.write_text(endpoints(count))
            fresh.rename(pool)
            await sees(count)
        assert (await state())["lost_log_lines"] >= 2
        assert (await state())["failing_tasks"] == {}
        assert "llm_d_epp_log_lines_lost_total" in await get(port, "/metrics")
    finally:
        process.terminate()
        await until(lambda: process.returncode is not None, "the picker has ended", PATIENCE_SECONDS)
    assert process.returncode == 0
