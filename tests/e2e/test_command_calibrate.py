# SPDX-License-Identifier: Apache-2.0
"""`epp calibrate` as a process, against simulated servers and against servers that misbehave."""

import asyncio
import contextlib
import json

import msgspec
from aiohttp import web

from epp.lab.sim.profile import PRESETS, load_server_profile
from epp.lab.sim.server import running
from tests.support.commands import command
from tests.support.listening import listening

FAST = msgspec.structs.replace(PRESETS["a100"], model="tiny", num_gpu_blocks=1234, max_num_seqs=3)


def calibrating(url, *flags, model="tiny"):
    return command("calibrate", url, f"--model={model}", *flags)


async def outcome(process):
    """Wait for the end; return the exit code, the output and the errors."""
    code = await process.end()
    output, errors = ("\n".join(lines) for lines in (process.out, process.err))
    assert "Traceback" not in errors, errors
    return code, output, errors


@contextlib.asynccontextmanager
async def server(complete):
    """Serve one model whose completions are made by a handler."""

    async def models(_):
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", complete)
    async with listening(app) as address:
        yield f"http://{address}"


async def test_profile_of_a_simulated_server_is_read_again(tmp_path):
    file = tmp_path / "mine.yaml"
    async with (
        running(FAST) as sim,
        calibrating(f"http://{sim.address}", "--budget=5s", f"--output={file}") as process,
    ):
        code, _, errors = await outcome(process)
    assert code == 0, errors
    assert "held-out requests, median and p90: time to first token" in errors
    profile = load_server_profile(file)
    assert (profile.num_gpu_blocks, profile.block_size, profile.max_model_len) == (1234, 16, 8192)
    assert (profile.model, profile.max_num_seqs) == ("tiny", 3)
    assert 0.3 < profile.prefill_tokens_per_second / FAST.prefill_tokens_per_second < 3
    assert 0.5 < profile.seconds_per_output_token / FAST.seconds_per_output_token < 3


async def test_ctrl_c_leaves_what_was_measured_or_says_that_it_is_too_little():
    asked = asyncio.Event()

    async def hang(_):
        asked.set()
        await asyncio.Event().wait()

    async with server(hang) as url, calibrating(url) as process:
        await asyncio.wait_for(asked.wait(), 60)
        process.interrupt()
        code, output, errors = await outcome(process)
    assert (code, output) == (1, "")
    assert "note: the calibration was interrupted" in errors
    assert "use a longer --budget" in errors


async def test_ctrl_c_writes_the_profile_if_enough_was_measured():
    asked, hangs = 0, asyncio.Event()

    async def answer_eleven(request):
        nonlocal asked
        asked += 1
        body = await request.json()
        if asked > 11:  # a first one, six lengths, and batches of one and two
            hangs.set()
            await asyncio.Event().wait()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(len(body["prompt"]) / 20_000)  # the time of a model
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0.005)
            await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        return response

    async with server(answer_eleven) as url, calibrating(url) as process:
        await asyncio.wait_for(hangs.wait(), 60)
        process.interrupt()
        code, output, errors = await outcome(process)
    assert (code, "the calibration was interrupted" in output) == (0, True), errors
    assert "answers have no usage" in output
    assert "no held-out request was measured" in errors


async def test_slow_server_ends_with_the_budget():
    async def hang(_):
        await asyncio.Event().wait()

    async with server(hang) as url, calibrating(url, "--budget=1s") as process:
        code, _, errors = await outcome(process)
    assert (code, "note: the budget ended during a batch" in errors) == (1, True)


async def test_server_that_ignores_max_tokens_is_noticed():
    async def endless(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"data: " + json.dumps({"choices": [{"text": "x"}]}).encode() + b"\n\n")
        return response

    async with server(endless) as url, calibrating(url, "--budget=20s") as process:
        code, _, errors = await outcome(process)
    assert (code, "ignores max_tokens" in errors) == (1, True)


async def test_garbage_errors_and_unknown_models_are_one_line():
    async def garbage(_):
        return web.Response(text="data: {]\n\n")

    async def refuse(_):
        return web.Response(status=503, text="no")

    for complete, model, message in (
        (garbage, "tiny", "does not send events of an OpenAI completion"),
        (refuse, "tiny", "answers 503 to a request: no"),
        (refuse, "other", "does not serve --model 'other': name one of tiny"),
    ):
        async with server(complete) as url, calibrating(url, model=model) as process:
            code, _, errors = await outcome(process)
        assert (code, message in errors) == (1, True), errors
    async with calibrating("http://127.0.0.1:9") as process:
        code, _, errors = await outcome(process)
    assert (code, "http://127.0.0.1:9 cannot be reached" in errors) == (1, True)
