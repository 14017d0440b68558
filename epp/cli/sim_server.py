"""`epp sim-server`: a simulated vLLM."""

import asyncio
from typing import Annotated

import msgspec
import typer

from epp.cli.flags import Verbosity
from epp.cli.running import run
from epp.observability import logs
from epp.sim import PRESETS, running

_DRAIN_SECONDS = 30.0
_NAMES = ", ".join(PRESETS)


def sim_server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)] = 8000,
    preset: Annotated[str, typer.Option(help=f"The machine to be: {_NAMES}.")] = "a100",
    name: Annotated[str | None, typer.Option(help="Sent with every answer as x-sim-server; the preset's.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model served.")] = None,
    lora: Annotated[list[str] | None, typer.Option(help="Name of a LoRA adapter served; may be repeated.")] = None,
    max_lora: Annotated[int | None, typer.Option(help="Adapters that fit at once.", min=0)] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests in a batch.", min=1)] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="KV blocks.", min=1)] = None,
    time_scale: Annotated[float | None, typer.Option(help="0.1 is ten times as fast as the real machine.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds answer equal prompts equally.")] = None,
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

        async with running(profile, host, port) as sim:
            typer.echo(f"{profile.name}: {profile.model} on http://{sim.address}")
            await stop.wait()
            await sim.drain(_DRAIN_SECONDS)

    run(work, ValueError, OSError)
