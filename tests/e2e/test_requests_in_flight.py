# SPDX-License-Identifier: Apache-2.0
"""A request counts as in flight until its response has ended, in every body mode, and no longer, however it ended."""

import asyncio
import tempfile
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from msgspec.structs import replace

from epp.extproc.settings import ResponseUsage
from epp.lab.gateway.settings import Bodies, GatewaySettings, body_modes
from epp.routing.director import Cause
from epp.routing.settings import OutlierSettings
from tests.support import config_files
from tests.support.echo import CONFIG
from tests.support.stepwise import LAST, PIECE, REPORTS, Setup, stepwise
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUFFERED = GatewaySettings(body_mode=Bodies.BUFFERED)
STREAMED = GatewaySettings(modes=body_modes("BUFFERED", "STREAMED"))
MODES = {
    "full duplex": (GatewaySettings(), ResponseUsage.AUTO),
    "buffered": (BUFFERED, ResponseUsage.AUTO),
    "buffered, responses asked for": (BUFFERED, ResponseUsage.ALWAYS),
    "buffered, responses declined": (
        replace(BUFFERED, modes={"response_body_mode": "STREAMED"}),
        ResponseUsage.NEVER,
    ),
    "streamed responses": (STREAMED, ResponseUsage.AUTO),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def _of_mode(request) -> AsyncIterator[Setup]:
    settings, usage = MODES[request.param]
    unjudged = OutlierSettings(enabled=False)  # the one server fails in many tests
    with tempfile.TemporaryDirectory() as directory:
        async with stepwise(directory, settings, usage=usage, outliers=unjudged) as setup:
            yield setup


@pytest_asyncio.fixture(loop_scope="module")
async def setup(_of_mode: Setup) -> Setup:
    """A gateway of each mode, which the tests of a mode share; it remembers nothing of the test before."""
    await _of_mode.settled()
    _of_mode.forget()
    return _of_mode


EXPIRES = {
    "full duplex": (GatewaySettings(), True),
    "buffered": (BUFFERED, True),
    "no response headers, pieces": (
        GatewaySettings(modes=body_modes("BUFFERED", "STREAMED") | {"response_header_mode": "SKIP"}),
        False,
    ),
    "nothing of responses": (
        GatewaySettings(modes=body_modes("BUFFERED", "NONE") | {"response_header_mode": "SKIP"}),
        False,
    ),
}
"""Gateways, and whether a request expires that is not answered: only where an answer would be seen for sure."""


@pytest.mark.parametrize("mode", EXPIRES)
async def test_tf_8_request_that_is_not_answered_counts_no_more_after_a_while(mode, tmp_path):
    settings, expires = EXPIRES[mode]
    with tempfile.TemporaryDirectory() as directory:
        async with stepwise(directory, settings, reservation_seconds=0.5) as setup:
            await setup.ask()
            metrics = setup.gateway.picker.metrics.registry.get_sample_value
            async with setup.asking(stream=True) as answered:
                assert await answered.content.readuntil(b"\n\n") == PIECE
                silent = asyncio.create_task(another_answer(setup, silent=True))
                await until(lambda: setup.in_flight[0] == 2, "both are under way")
                if expires:
                    await until(lambda: setup.in_flight[0] == 1, "one has expired")
                else:
                    await asyncio.sleep(1.5)  # more than one sweep, in which nothing may expire
                    assert setup.in_flight[0] == 2
                assert metrics("llm_d_epp_reservations_expired_total") == expires
                setup.server.finish.set()
                assert (await silent)[0] == 200
                await answered.read()
            await setup.settled()
            await until(lambda: len(setup.endings.completed_as) == 3, "all have ended")
            assert setup.served_and_failed == (3, 0)
            assert len(setup.gateway.picker.director.reservations) == 0


async def ended(setup: Setup) -> tuple[Cause, int]:
    """Wait for the end of the one request; return how it ended.

    Where the gateway shows headers alone, a complete response and one that was cut look alike after these.
    """
    await until(lambda: setup.endings.completed_as, "the request has ended")
    await setup.settled()
    ((cause, status),) = setup.endings.completed_as
    return cause, status


def seen(setup: Setup, cause: Cause) -> Cause:
    return Cause.UNSEEN if setup.shows_headers_alone else cause


async def test_whole_response(setup: Setup):
    status, body = await setup.ask()
    assert (status, b'"word"' in body) == (200, True)
    assert await ended(setup) == (seen(setup, Cause.NATURAL), 200)
    assert setup.served_and_failed == (1, 0)


async def test_stream_counts_until_its_last_piece(setup: Setup):
    async with setup.asking(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == PIECE
        for _ in range(20):  # time in which a stream that ends too early would end
            await asyncio.sleep(0.02)
            assert setup.in_flight[0] == 1
        assert not setup.endings.completed_as
        setup.server.finish.set()
        assert await response.read() == LAST
    assert await ended(setup) == (seen(setup, Cause.NATURAL), 200)
    assert setup.served_and_failed == (1, 0)


async def test_many_streams_count_one_by_one(setup: Setup):
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(setup.ask(stream=True, pieces=3)) for _ in range(10)]
        await until(lambda: setup.in_flight[0] == 10, "all are in flight")
        for _ in range(20):
            setup.server.taken.release()
        setup.server.finish.set()
    assert {task.result() for task in asked} == {(200, PIECE * 3 + LAST)}
    await until(lambda: setup.endings.completed_as == [(seen(setup, Cause.NATURAL), 200)] * 10, "all have ended")
    assert setup.served_and_failed == (10, 0)


@pytest.mark.parametrize(("status", "failed"), [(500, 1), (404, 0)], ids=["failure", "refusal"])
async def test_refusal_of_the_server_is_no_failure(setup: Setup, status, failed):
    assert (await setup.ask(fail=status))[0] == status
    assert await ended(setup) == (seen(setup, Cause.NATURAL), status)
    assert setup.served_and_failed == (1, failed)


async def test_client_that_leaves(setup: Setup):
    async with setup.asking(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        assert setup.in_flight[0] == 1
        response.close()
    assert await ended(setup) == (seen(setup, Cause.CLIENT_DISCONNECT), 200)
    await until(lambda: setup.server.gone == 1, "the server is told")


async def test_server_that_is_lost_during_its_response(setup: Setup):
    async with setup.asking(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        setup.server.break_off.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert await ended(setup) == (seen(setup, Cause.CLIENT_DISCONNECT), 200)


async def test_server_that_is_lost_before_its_response(setup: Setup):
    assert (await setup.ask(hang_up=True))[0] == 503
    assert await ended(setup) == (seen(setup, Cause.NATURAL), 503)
    assert setup.served_and_failed == (1, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_stream_under_way_while_the_configuration_changes(mode, tmp_path):
    """It needs no responses before, and reads them all after: what holds for a request is what it began with."""
    settings, usage = MODES[mode]
    file = tmp_path / "config.yaml"
    config_files.replace(file, CONFIG)
    with tempfile.TemporaryDirectory() as directory:
        async with stepwise(directory, settings, usage=usage, config_file=file) as setup:
            await setup.ask()
            async with setup.asking(stream=True) as response:
                assert await response.content.readuntil(b"\n\n") == PIECE
                config_files.replace(file, REPORTS)
                await until(lambda: setup.gateway.picker.config.generation == 2, "the new one is in effect")
                assert setup.in_flight[0] == 1
                status, _ = await another_answer(setup)
                assert status == 200
                assert setup.in_flight[0] == 1
                setup.server.finish.set()
                assert await response.read() == LAST
            await until(lambda: len(setup.endings.completed_as) == 3, "all have ended")
            await setup.settled()
            first, read, stream = setup.endings.completed_as
            assert (first, stream) == ((seen(setup, Cause.NATURAL), 200),) * 2
            assert read == (Cause.NATURAL, 200)
            assert setup.endings.routings[1].usage is not None  # under the new configuration


async def another_answer(setup: Setup, **more: object) -> tuple[int, bytes]:
    """Ask once while another request is open."""
    async with setup.asking(**more) as response:
        return response.status, await response.read()


async def test_client_that_leaves_before_the_response(setup: Setup):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.5)) as impatient:
        setup.http, patient = impatient, setup.http
        with pytest.raises(TimeoutError):
            await setup.ask(silent=True)
        setup.http = patient
    assert await ended(setup) == (Cause.CLIENT_DISCONNECT, 0)
