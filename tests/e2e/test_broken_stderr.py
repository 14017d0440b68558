# SPDX-License-Identifier: Apache-2.0
"""A picker whose log nobody can take goes on working, and says so where it can."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import aiohttp

from tests.support.config_files import endpoints_file, picker_config
from tests.support.serving import health_on, metrics_on
from tests.support.waiting import read_until

CONFIG = picker_config("""
plugins: [{{type: file-discovery, parameters: {{path: {path}, watchFile: true}}}}]
dataLayer: {{injectDefaults: false, discovery: {{pluginRef: file-discovery}}}}
""")


async def test_edits_are_applied_though_no_log_line_can_be_written(tmp_path, port):
    pool, config = tmp_path / "endpoints.yaml", tmp_path / "config.yaml"

    def write(count: int) -> None:
        endpoints_file(pool, **{f"e{number}": (f"10.0.0.{number + 1}:8000", {}) for number in range(count)})

    write(1)
    config.write_text(CONFIG.format(path=pool))
    writer = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "epp"),
        *("serve", "--config-file", str(config), "--secure-serving=false"),
        *("--grpc-port=0", "--grpc-health-port=0", f"--metrics-port={port}"),
        stderr=writer,
    )
    os.close(writer)

    async def sees(count: int) -> dict[str, object]:
        """Wait until `/healthz` has so many endpoints; return its fields."""

        async def health() -> dict[str, object]:
            assert process.returncode is None
            with contextlib.suppress(aiohttp.ClientError):
                return (await health_on(port))[1]
            return {}

        what = f"the picker has {count} endpoints"
        return await read_until(health, lambda found: found.get("endpoints") == count and found["ready"], what, 60)

    try:
        await sees(1)
        for count in (2, 3):
            write(count)
            health = await sees(count)
        assert health["lost_log_lines"] >= 2
        assert health["failing_tasks"] == {}
        assert "llm_d_epp_log_lines_lost_total" in await metrics_on(port)
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
