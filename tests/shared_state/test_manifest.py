# SPDX-License-Identifier: Apache-2.0
"""The command of `deploy/manifests/valkey.yaml`, with the server that there is."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from redis import Redis

from tests.shared_state.test_stream import ENDPOINTS, knows, sharing
from tests.support.ports import reserved_ports

MANIFEST = Path(__file__).parents[2] / "deploy" / "manifests" / "valkey.yaml"


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[str]:
    """Run it; yields its command line."""
    process = subprocess.Popen(command, cwd=folder, env=os.environ | {"VALKEY_PASSWORD": "s3cret"})
    try:
        yield Path(f"/proc/{process.pid}/cmdline").read_text()
    finally:
        process.kill()
        process.wait()


async def test_pickers_share_their_state_through_the_valkey_of_the_manifest(server, tmp_path):
    program = (await server()).program
    (stateful,) = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each and each["kind"] == "StatefulSet"]
    *shell, script = stateful["spec"]["template"]["spec"]["containers"][0]["command"]
    with reserved_ports(1) as (port,):
        script = script.replace("valkey-server", program).replace("port 6379", f"port {port}")
        with running([*shell, script], tmp_path) as line:
            assert "s3cret" not in line
            url = f"redis://:s3cret@127.0.0.1:{port}"
            async with sharing(url) as one, sharing(url) as other:
                one.send(ENDPOINTS[0], 10)
                await knows(other, {"e0": (1, 10)})
            with Redis.from_url(url, decode_responses=True) as admin:
                found = admin.config_get("maxmemory*")
            assert (found["maxmemory"], found["maxmemory-policy"]) == (str(384 * 1024**2), "allkeys-lru")
