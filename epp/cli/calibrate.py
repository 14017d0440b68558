# SPDX-License-Identifier: Apache-2.0
"""`epp calibrate`: a server profile from measurements of a model server."""

import asyncio
from datetime import UTC, datetime

import aiohttp
import typer

from epp.cli.commands import Calibrate
from epp.cli.input_output import progress_bar, write_text
from epp.cli.running import run
from epp.framework import ConfigurationError
from epp.framework.files import read_regular
from epp.lab.sim.fit import NotEnoughError, fit, fit_error, spread
from epp.lab.sim.measure import Calibration, HttpServer, ServerError
from epp.lab.sim.profile import ProfileSource, SimProfile, dump_server_profile
from epp.runtime.supervisor import first_of


def calibrate(flags: Calibrate) -> None:
    headers = {}
    if flags.api_key_file is not None:
        try:
            key = read_regular(flags.api_key_file, 16 * 1024).data.decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"--api-key-file {str(flags.api_key_file)!r} cannot be read: {error}") from error
        headers["authorization"] = f"Bearer {key}"

    async def work(stop: asyncio.Event) -> None:
        notes: list[str] = []
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
            server = HttpServer(session, flags.url, flags.model)
            with progress_bar("Calibrating", lambda: 1.0) as progress:
                measured = Calibration(server, budget=flags.budget, progress=progress)
                if not await first_of(_measure(measured, flags.budget, notes), stop.wait()):
                    notes.append("the calibration was interrupted")
        _write(flags, measured, [*notes, *server.remarks])

    run(work, ConfigurationError, ServerError, NotEnoughError)


async def _measure(measured: Calibration, budget: float, notes: list[str]) -> None:
    try:
        async with asyncio.timeout(budget):
            await measured.run()
    except TimeoutError:
        notes.append("the budget ended during a batch")
    except ServerError as error:
        if not measured.requests:
            raise
        notes.append(f"the measurement ended early: {error}")


def _write(flags: Calibrate, found: Calibration, notes: list[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    profile = fit(_start(flags.model, found, notes), found.prefills, found.decodes)
    limitations = _limitations(profile, found)
    for note in limitations:
        typer.echo(f"note: {note}", err=True)
    errors = fit_error(profile, found.held_out)
    if errors is None:
        typer.echo("note: no held-out request was measured: the error is unknown", err=True)
    else:
        typer.echo(
            f"error on {errors.requests} held-out requests, median and p90: "
            f"time to first token {errors.ttft_median:.1%} and {errors.ttft_p90:.1%}, "
            f"time per token {errors.time_per_token_median:.1%} and {errors.time_per_token_p90:.1%}",
            err=True,
        )
    source = ProfileSource(
        kind="measured",
        server=flags.url,
        at=datetime.now(UTC).replace(microsecond=0),
        requests=found.requests,
        errors=errors,
        notes=(*notes, *limitations),
    )
    text = dump_server_profile(profile, source)
    if flags.output is None:
        typer.echo(text, nl=False)
    else:
        write_text(flags.output, text)


def _start(model: str, found: Calibration, notes: list[str]) -> SimProfile:
    """Return the profile before the fit, from the figures of the server; missing figures become notes."""
    facts, default = found.facts, SimProfile()
    length = max(facts.max_model_len or default.max_model_len, 2)
    size = facts.block_size or default.block_size
    blocks = facts.num_gpu_blocks or max(default.num_gpu_blocks, -(-length // size))
    for name, value in facts._asdict().items():
        if value is None:
            notes.append(f"{name} is the default: the server does not report it")
    if size * blocks < length:
        notes.append(f"max_model_len is lowered from {length} to {size * blocks}, the size of the KV cache")
        length = size * blocks
    return SimProfile(name=model, model=model, max_model_len=length, block_size=size, num_gpu_blocks=blocks)


def _limitations(profile: SimProfile, found: Calibration) -> list[str]:
    notes = ["max_num_batched_tokens is the default: no API reports it"]
    if (differences := spread(found.prefills)) is not None:
        half, most = differences
        notes.append(f"equal requests differ from their median by {half:.1%} (median) and {most:.1%} (p90)")
    largest = max(map(len, found.decodes))
    if profile.max_num_seqs >= largest:
        notes.append(f"max_num_seqs is the default: {largest} concurrent requests ran together")
    if found.busy:
        notes.append(f"the server had other requests before {found.busy} of the batches: measure it without traffic")
    if found.hits and not any(again.cached_tokens for _, again in found.hits):
        notes.append("no hit of the prefix cache was reported for a repeated prompt")
    notes += [
        f"a repeated prompt of {again.prompt_tokens} tokens, {again.cached_tokens} of them cached, took "
        f"{again.token_seconds[0]:.4g} s to the first token, instead of {fresh.token_seconds[0]:.4g} s"
        for fresh, again in found.hits[:1]
    ]
    return notes
