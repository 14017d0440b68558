# SPDX-License-Identifier: Apache-2.0
"""`epp sim-server`: a simulated vLLM."""

import asyncio

import msgspec
import typer

from epp.cli.commands import SimServer
from epp.cli.running import run
from epp.framework import ConfigurationError
from epp.lab.sim.profile import find_server_profile
from epp.lab.sim.server import running
from epp.runtime.addresses import HostPort, refusal
from epp.telemetry import logs


def sim_server(flags: SimServer) -> None:
    logs.configure(flags.v)
    names = ("name", "model", "max_lora", "max_num_seqs", "num_gpu_blocks", "time_scale", "seed")
    changes = {name: value for name in names if (value := getattr(flags, name)) is not None}
    if flags.lora:
        changes["lora_adapters"] = tuple(flags.lora)

    async def work(stop: asyncio.Event) -> None:
        profile = msgspec.structs.replace(find_server_profile(flags.preset, "--preset"), **changes)
        try:
            async with running(profile, flags.host, flags.port, metrics=not flags.no_metrics) as sim:
                typer.echo(f"{profile.name}: {profile.model} on http://{sim.address}")
                await stop.wait()
                await sim.drain(30.0)
        except OSError as error:
            raise ConfigurationError(refusal(HostPort(flags.host, flags.port), error)) from error

    run(work, ValueError, ConfigurationError)
