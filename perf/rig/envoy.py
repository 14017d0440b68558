# SPDX-License-Identifier: Apache-2.0
"""A real Envoy with the configuration of `epp gateway`, with a picker or, for comparison, without one."""

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from epp.lab.gateway.bootstrap import bootstrap_dict
from epp.lab.gateway.envoy import find_envoy
from epp.lab.gateway.settings import ENDPOINT_PICKER, LISTENER, Bodies, GatewaySettings
from perf.rig.processes import BenchError, Child
from tests.support.ports import reserved_ports

FULL_DUPLEX = GatewaySettings()
FEW_MESSAGES = GatewaySettings(body_mode=Bodies.BUFFERED)
"""Body modes of `epp gateway --body-mode buffered`."""
_OF_PICKERS = ("envoy.filters.http.ext_proc", "envoy.filters.http.header_mutation")
_LOOK_SECONDS = 0.05


class Envoy:
    """A running Envoy."""

    def __init__(self, child: Child, port: int, directory: str, held: contextlib.ExitStack) -> None:
        self.child = child
        self.port = port
        self._directory = directory
        self._held = held

    @classmethod
    async def start(cls, settings: GatewaySettings, picker_port: int | None) -> Self:
        """Run an Envoy; without a picker, clients set the destination header themselves."""
        held = contextlib.ExitStack()
        directory = held.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-"))
        (port,) = held.enter_context(reserved_ports(1))
        settings = msgspec.structs.replace(
            settings,
            listen_port=port,
            admin_address=f"unix:{directory}/admin.sock",
            picker_address=f"127.0.0.1:{picker_port or 1}",
        )
        config: Any = bootstrap_dict(settings)
        if picker_port is None:
            _without_picker(config)
        path = Path(directory) / "envoy.json"
        path.write_text(json.dumps(config))
        child = await Child.start(
            "envoy",
            *(str(find_envoy()), "--config-path", str(path), "--concurrency", str(settings.concurrency)),
            *("--disable-hot-restart", "--log-level", "warning"),
        )
        return cls(child, port, directory, held)

    async def ready(self, seconds: float = 30.0) -> None:
        """Wait until it listens, and until the health check of its picker, if any, passes."""
        try:
            async with asyncio.timeout(seconds), self._admin() as admin:
                while not await self._is_ready(admin):
                    self.child.check()
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise BenchError(
                f"Envoy has no healthy picker after {seconds:g} s: the picker must answer gRPC health checks of "
                f"the ext_proc service on its ext_proc port, in plaintext\n{self.child.log}"
            ) from None

    async def messages(self) -> int:
        """Return the number of messages that it has sent to the picker."""
        name = f"http.{LISTENER}.ext_proc.stream_msgs_sent"
        async with self._admin() as admin:
            return await _value(admin, name)

    async def stop(self) -> None:
        await self.child.stop()
        self._held.close()

    def _admin(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession("http://envoy", connector=aiohttp.UnixConnector(f"{self._directory}/admin.sock"))

    async def _is_ready(self, admin: aiohttp.ClientSession) -> bool:
        try:
            async with admin.get("/ready") as response:
                if response.status != 200:
                    return False
            async with admin.get("/clusters", params={"format": "json"}) as response:
                clusters = json.loads(await response.read())["cluster_statuses"]
        except aiohttp.ClientError:
            return False
        if ENDPOINT_PICKER not in {cluster["name"] for cluster in clusters}:
            return True
        async with self._admin() as fresh:
            return await _value(fresh, f"cluster.{ENDPOINT_PICKER}.membership_healthy") > 0


def _without_picker(config: Any) -> None:
    """Remove the parts for the picker."""
    resources = config["static_resources"]
    resources["clusters"] = [each for each in resources["clusters"] if each["name"] != ENDPOINT_PICKER]
    for chain in resources["listeners"][0]["filter_chains"]:
        for network_filter in chain["filters"]:
            manager = network_filter["typed_config"]
            manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] not in _OF_PICKERS]


async def _value(admin: aiohttp.ClientSession, name: str) -> int:
    query = {"format": "json", "filter": f"^{name.replace('.', '[.]')}$"}
    async with admin.get("/stats", params=query) as response:
        found = json.loads(await response.read())
    return sum(stat.get("value", 0) for stat in found["stats"])
