"""`epp sim-server`: a simulated vLLM."""

import asyncio
from typing import Annotated

import msgspec
import typer

from epp.cli.options import Verbosity
from epp.cli.running import run
from epp.framework import ConfigurationError
from epp.host_port import HostPort
from epp.observability import logs
from epp.sim import PRESETS, running

_DRAIN_SECONDS = 30.0
_NAMES = ", ".join(PRESETS)


def sim_server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)] = 8000,
    preset: Annotated[str, typer.Option(help=f"The simulated machine: {_NAMES}.")] = "a100",
    name: Annotated[
        str | None, typer.Option(help="Value of x-sim-server in every answer; the preset by default.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model.")] = None,
    lora: Annotated[list[str] | None, typer.Option(help="Name of a LoRA adapter; may be repeated.")] = None,
    max_lora: Annotated[int | None, typer.Option(help="Most adapters that run at the same time.", min=1)] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests in a batch.", min=1)] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="KV blocks.", min=1)] = None,
    time_scale: Annotated[float | None, typer.Option(help="Factor on all durations: 0.1 is ten times as fast.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal answers to equal prompts.")] = None,
    no_metrics: Annotated[bool, typer.Option("--no-metrics", help="Answer /metrics with 404.")] = False,
    v: Verbosity = 0,
) -> None:
    """Run a simulated vLLM server: its API, its metrics and its timing, without a GPU."""
    logs.configure(v)
    if preset not in PRESETS:
        raise typer.BadParameter(f"{preset!r} is not one of {_NAMES}", param_hint="--preset")
    given = {
        "name": name,
        "model": model,
        "lora_adapters": tuple(lora) if lora else None,
        "max_lora": max_lora,
        "max_num_seqs": max_num_seqs,
        "num_gpu_blocks": num_gpu_blocks,
        "time_scale": time_scale,
        "seed": seed,
    }

    async def work(stop: asyncio.Event) -> None:
        changes = {key: value for key, value in given.items() if value is not None}
        profile = msgspec.structs.replace(PRESETS[preset], **changes)
        try:
            async with running(profile, host, port, metrics=not no_metrics) as sim:
                typer.echo(f"{profile.name}: {profile.model} on http://{sim.address}")
                await stop.wait()
                await sim.drain(_DRAIN_SECONDS)
        except OSError as error:
            reason = str(error.strerror).rpartition(": ")[2]
            address = HostPort(host, port)
            raise ConfigurationError(
                f"cannot listen on {address}: {reason}; choose another --host or --port"
            ) from error

    run(work, ValueError, ConfigurationError)
