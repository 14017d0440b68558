# SPDX-License-Identifier: Apache-2.0
"""An etcd of one member."""

import base64
from pathlib import Path

import aiohttp

from tests.support.kube.processes import Process


class Etcd:
    """The store of an API server."""

    def __init__(self, program: Path, data: Path, *, client_port: int, peer_port: int) -> None:
        self.url = f"http://127.0.0.1:{client_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        self.process = Process(
            data / "etcd.log",
            str(program),
            f"--data-dir={data / 'etcd'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    async def start(self) -> None:
        await self.process.start(self._ready)

    async def revision(self) -> int:
        """Return the revision of the last write; resource versions of objects are such revisions."""
        answer = await self._call("kv/range", {"key": _encoded("any")})
        return int(answer["header"]["revision"])

    async def advance(self) -> int:
        """Write a key of no meaning; return the revision, later than those of all objects."""
        answer = await self._call("kv/put", {"key": _encoded("advanced"), "value": _encoded("1")})
        return int(answer["header"]["revision"])

    async def compact(self) -> int:
        """Forget the history of all objects, up to now; return the oldest revision that is still known."""
        await self.advance()  # a watch from the revision of the last write begins with the next one
        revision = await self.advance()
        await self._call("kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    async def _call(self, method: str, message: dict) -> dict:
        async with aiohttp.ClientSession(self.url) as http, http.post(f"/v3/{method}", json=message) as response:
            answer = await response.json()
            assert response.status == 200, f"etcd answers {method} with {answer}"
            return answer

    async def _ready(self) -> bool:
        try:
            async with aiohttp.ClientSession(self.url) as http, http.get("/health") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
