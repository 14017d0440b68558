# SPDX-License-Identifier: Apache-2.0
"""A scene with a real Envoy in front of the picker and simulated servers behind it, in separate processes."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from epp.framework import Endpoint
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.local import discovery_response
from epp.lab.gateway.settings import ClusterType, FailureMode
from perf.hostile.scene import WIDE, Campaign, Scene, scene
from perf.rig.processes import Program
from tests.support.world import ANY_PORT, FAST

SIM_SERVERS = Path(__file__).parents[1] / "rig" / "sim_servers.py"


@dataclass(frozen=True, slots=True)
class Behind:
    """A picker with its gateway."""

    scene: Scene
    url: str
    address: tuple[str, int]
    servers: Sequence[str]
    """Addresses of the model servers."""


@contextlib.asynccontextmanager
async def sim_servers(count: int) -> AsyncIterator[list[str]]:
    """Run simulated servers, all in one process; return their addresses."""
    profiles = [msgspec.to_builtins(msgspec.structs.replace(FAST, name=f"s{number}")) for number in range(count)]
    async with await Program.run(SIM_SERVERS) as program:
        ports = (await program.ask({"profiles": profiles}))["ports"]
        yield [f"127.0.0.1:{port}" for port in ports]


@contextlib.asynccontextmanager
async def behind_envoy(
    campaign: Campaign,
    *flags: str,
    config: str = WIDE,
    servers: Sequence[str] = (),
    others: Sequence[str] = (),
    failure_mode: FailureMode = FailureMode.FAIL_CLOSE,
    cluster_type: ClusterType = ClusterType.OVERRIDE_HOST,
    environment: Mapping[str, str] = MappingProxyType({}),
    named: bool = True,
) -> AsyncIterator[Behind]:
    """Run servers, picker and Envoy; `others` are servers that only Envoy knows.

    Unless they are `named` in its flags, the picker reads its servers from the file with its configuration.
    """
    async with AsyncExitStack() as stack:
        pool = list(servers) or await stack.enter_async_context(sim_servers(2))
        picker = await stack.enter_async_context(
            scene(campaign.judge, *flags, config=config, endpoints=pool if named else None, environment=environment)
        )
        known = [Endpoint(f"s{number}", *_host_port(each)) for number, each in enumerate([*pool, *others])]
        eds_file = campaign.folder / "eds.json"
        eds_file.write_bytes(discovery_response(known))
        settings = msgspec.structs.replace(
            ANY_PORT,
            picker_address=f"127.0.0.1:{picker.served.grpc_port}",
            cluster_type=cluster_type,
            eds_file=eds_file if cluster_type is ClusterType.OVERRIDE_HOST else None,
            failure_mode=failure_mode,
        )
        envoy = await stack.enter_async_context(await EnvoyProcess.start(settings, wait_for_picker=True))
        yield Behind(picker, f"http://{envoy.address}", (envoy.address.host, envoy.address.port), pool)


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
