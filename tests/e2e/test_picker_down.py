# SPDX-License-Identifier: Apache-2.0
"""The picker is killed, or hangs, while requests flow: what Envoy does then is what the failure mode says."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import openai
import pytest

from epp.framework import Endpoint
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.local import discovery_response
from epp.lab.gateway.settings import Bodies, ClusterType, FailureMode, GatewaySettings
from tests.support.commands import Command, command
from tests.support.serving import ANY_PORT, PLAIN
from tests.support.waiting import read_until, until
from tests.support.world import MODEL, endless, pool_of, question, rest_of

PICKED = "x-went-into-resp-headers"
"""The header that the picker leaves on every response it sees."""


@dataclass
class Setup:
    """Two servers, an Envoy that knows them from a file, and the flags of a picker for them."""

    client: openai.AsyncOpenAI
    flags: tuple[str, ...]

    @contextlib.asynccontextmanager
    async def picker(self) -> AsyncIterator[Command]:
        """Run the picker; begin when Envoy asks it."""
        async with command(*self.flags) as picker:
            await picker.says('"msg":"ready"')
            await self.picked()
            yield picker

    async def picked(self) -> None:
        """Wait for a response that the picker saw: Envoy asks for its health from time to time."""
        await read_until(self.ask, lambda answer: answer == (200, True), "the picker sees responses")

    async def ask(self, prompt: str = "hello") -> tuple[int, bool]:
        """Return the status, and whether the picker saw the response."""
        try:
            raw = await self.client.chat.completions.with_raw_response.create(**question(prompt))
        except openai.APIStatusError as error:
            return error.status_code, PICKED in error.response.headers
        return raw.status_code, PICKED in raw.headers


@pytest.fixture
async def in_front_of(simulated, port, tmp_path):
    """Start Envoy with these settings; the picker is for the test to start."""

    @contextlib.asynccontextmanager
    async def start(**settings) -> AsyncIterator[Setup]:
        sims = await simulated("a", "b")
        eds_file = tmp_path / "endpoints.json"
        eds_file.write_bytes(discovery_response([Endpoint(name, sim.host, sim.port) for name, sim in sims.items()]))
        envoy_settings = GatewaySettings(
            listen_port=0,
            picker_address=f"127.0.0.1:{port}",
            cluster_type=ClusterType.OVERRIDE_HOST,
            eds_file=eds_file,
            **settings,
        )
        flags = ("serve", f"--endpoints={pool_of(sims)}", PLAIN, *ANY_PORT, f"--grpc-port={port}", "--health-checking")
        async with (
            await EnvoyProcess.start(envoy_settings) as envoy,
            openai.AsyncOpenAI(
                base_url=f"http://{envoy.address}/v1",
                api_key="none",
                max_retries=0,
                # Envoy may close a connection after a refusal, just as the next request is written to it.
                default_headers={"connection": "close"},
            ) as client,
        ):
            yield Setup(client, flags)

    return start


async def kill(picker: Command) -> None:
    picker.kill()
    await picker.end()


async def test_fail_close_is_503_until_the_picker_is_back(in_front_of):
    async with in_front_of() as setup:
        assert await setup.ask() == (503, False)
        async with setup.picker() as picker:
            assert {await setup.ask() for _ in range(5)} == {(200, True)}
            await kill(picker)
            assert {await setup.ask() for _ in range(5)} == {(503, False)}
        async with setup.picker():
            assert {await setup.ask() for _ in range(5)} == {(200, True)}


class Load:
    """Eight clients that each ask one thing after the other, for as long as they run."""

    def __init__(self, setup: Setup) -> None:
        self.answers: list[tuple[int, bool]] = []
        self._setup = setup
        self._period: list[tuple[int, bool]] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for _ in range(8):
                clients.create_task(self._client(stop))
            yield
            stop.set()

    async def next_answers(self, count: int) -> set[tuple[int, bool]]:
        """Wait for this many answers to requests that began after this call.

        One that is under way while the picker goes or comes may end either way, and late.
        """
        period = self._period = []
        await until(lambda: len(period) >= count, f"{count} more answers are there")
        self._period = None
        return set(period)

    async def _client(self, stop: asyncio.Event) -> None:
        while not stop.is_set() and len(self.answers) < 20_000:
            period = self._period
            try:
                answer = await self._setup.ask("x" * 2_000)
            except openai.APIConnectionError:
                answer = (0, False)  # its response was on the way when the picker died
            self.answers.append(answer)
            if period is not None and period is self._period:
                period.append(answer)


@pytest.mark.slow
async def test_fail_close_under_load_answers_every_request_or_ends_it_and_recovers(in_front_of):
    async with in_front_of() as setup:
        load = Load(setup)
        async with setup.picker() as picker, load.running():
            assert await load.next_answers(50) == {(200, True)}
            await kill(picker)
            assert await load.next_answers(100) == {(503, False)}  # nothing gets past a picker that is not there
            async with setup.picker():
                assert await load.next_answers(50) == {(200, True)}


@pytest.mark.slow
async def test_fail_open_loses_no_request_of_a_load_over_which_the_picker_dies_and_comes_back(in_front_of):
    async with in_front_of(failure_mode=FailureMode.FAIL_OPEN) as setup:
        load = Load(setup)
        async with setup.picker() as picker, load.running():
            assert await load.next_answers(50) == {(200, True)}
            await kill(picker)
            assert (200, False) in await load.next_answers(100)
            async with setup.picker():
                assert await load.next_answers(50) == {(200, True)}
        assert {status for status, _ in load.answers} == {200}


async def test_fail_open_before_any_picker_was_there(in_front_of):
    async with in_front_of(failure_mode=FailureMode.FAIL_OPEN) as setup:
        assert {await setup.ask() for _ in range(4)} == {(200, False)}
        async with setup.picker():
            assert {await setup.ask() for _ in range(4)} == {(200, True)}


@pytest.mark.parametrize("bodies", [None, Bodies.BUFFERED])
async def test_fail_open_lets_a_response_go_on_without_the_picker(in_front_of, bodies):
    async with in_front_of(failure_mode=FailureMode.FAIL_OPEN, body_mode=bodies) as setup, setup.picker() as picker:
        stream = await endless(setup.client, 400)
        await kill(picker)
        await rest_of(stream)


async def test_fail_open_does_not_wait_for_a_picker_that_hangs(in_front_of):
    patience = {"failure_mode": FailureMode.FAIL_OPEN, "message_timeout_seconds": 1.0}
    async with in_front_of(**patience) as setup, setup.picker() as picker:
        os.kill(picker.pid, signal.SIGSTOP)
        try:
            assert {await setup.ask() for _ in range(2)} == {(200, False)}
        finally:
            os.kill(picker.pid, signal.SIGCONT)


async def test_fail_open_still_says_no_when_the_picker_does(in_front_of):
    async with in_front_of(failure_mode=FailureMode.FAIL_OPEN) as setup, setup.picker():
        with pytest.raises(openai.BadRequestError):
            await setup.client.chat.completions.create(model=MODEL, messages=[])


async def test_fail_open_takes_large_bodies_up_to_the_limit_with_the_picker_and_any_without(in_front_of):
    padding = {"metadata": {"padding": "x" * 5_000_000}}

    async def ask(setup: Setup) -> int:
        try:
            await setup.client.chat.completions.create(**question("large"), extra_body=padding)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    async with in_front_of(failure_mode=FailureMode.FAIL_OPEN, max_body_bytes=6_000_000) as setup:
        async with setup.picker():
            assert await ask(setup) == 200
            padding["metadata"]["padding"] *= 2
            assert await ask(setup) == 413
        assert await ask(setup) == 200


@pytest.mark.parametrize("bodies", [Bodies.FULL_DUPLEX, Bodies.BUFFERED])
async def test_picker_that_is_told_to_end_stays_until_a_stream_has_ended(in_front_of, bodies):
    async with in_front_of(body_mode=bodies) as setup, setup.picker() as picker:
        stream = await endless(setup.client, 1_000)
        picker.terminate()
        await rest_of(stream)
        assert await picker.end() == 0
        assert not any('"msg":"streams cut"' in line for line in picker.err)
