# SPDX-License-Identifier: Apache-2.0
"""Predictions of a server behind a real socket: how they are asked for, and what happens without an answer."""

import asyncio
import contextlib

import msgspec
import numpy as np
import pytest

from epp.framework import LATENCY_PREDICTION, MEDIA_MATCH, Candidates, Endpoint, MediaMatch, Records
from epp.framework.testing import candidates
from tests.support.ports import reserved_ports
from tests.support.prediction_server import PredictionServer
from tests.support.waiting import until


@contextlib.asynccontextmanager
async def following(world):
    task = asyncio.create_task(world.plugin.follow(lambda _: None))
    try:
        yield world
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def is_ready(world, server):
    return lambda: world.metric("latency_server_ready", server.url) == 1


@contextlib.asynccontextmanager
async def asking(make, server, *, variables=None, **parameters):
    """Yield a world whose server is ready; requests wait long, as the machine may be slow."""
    environment = {"PREDICTION_SERVER_URL": server.url, "TRAINING_SERVER_URL": server.url} | (variables or {})
    given = {"streamingMode": True, "predictionTimeout": "20s", **parameters}
    async with following(make(environment=environment, **given)) as world:
        await until(is_ready(world, server), "the server is ready")
        yield world


async def held(world, request=None, **more):
    """Send a request through the producer and its hold, as the director does; return its predictions."""
    request = request or world.request(**more)
    world.predict(request)
    hold = world.plugin.admit(request, world.now)
    if hold is not None:
        await hold
    return world.predict(request)


@pytest.fixture
async def server():
    async with PredictionServer(times=lambda row: (row["kv_cache_percentage"] * 1000, 5.0)).serving() as server:
        yield server


async def test_server_is_asked_for_each_candidate_and_its_times_are_published(world, server):
    pool = candidates(
        in_flight=[0, 1, 2],
        in_flight_tokens=[0, 70, 0],
        kv_usage=[0.1, 0.2, 0.3],
        waiting=[0, 4, 0],
        labels=[{"role": "prefill"}, {"role": "decode"}, {}],
    )
    async with asking(world, server, pool=pool, endpointRoleLabel="role") as asked:
        found = await held(asked, held=(0, 5, 10), ttft=250, tpot=8)
    assert found.source == "server"
    assert (found.ttft_headroom * 1e3).round(6).tolist() == [150, 50, -50]
    assert (found.tpot_headroom * 1e3).round(6).tolist() == [0, 3, 3]
    ((first, second, third),) = server.calls
    assert second == {
        "kv_cache_percentage": 0.2,
        "input_token_length": 1000,
        "num_request_waiting": 4,
        "num_request_running": 1,
        "num_tokens_generated": 1,
        "prefix_cache_score": 0.5,
        "encoder_input_size": 0,
        "encoder_matched_size": 0,
        "prefill_tokens_in_flight": 70,
        "decode_tokens_in_flight": 0,
        "pod_type": "decode",
    }
    assert (first["pod_type"], "pod_type" in third, third["prefix_cache_score"]) == ("prefill", False, 1.0)


async def test_requests_of_one_window_share_a_call(world, server):
    async with asking(world, server, variables={"LATENCY_COALESCE_WINDOW_MS": "50"}) as asked:
        found = await asyncio.gather(*(held(asked) for _ in range(5)))
        assert [len(rows) for rows in server.calls] == [15]
        assert {prediction.source for prediction in found} == {"server"}
        assert all((each.ttft_seconds * 1e3).round(6).tolist() == [100, 200, 300] for each in found)


async def test_server_gets_the_numbers_of_media_and_of_encoded_ones_if_that_is_wanted(world, server):
    async with asking(world, server, useEncoderCacheFeatures=True, encoderCacheMatchInfoProducerName="mm") as asked:
        request = asked.request()
        request.put(MEDIA_MATCH.produced_by("mm"), MediaMatch(np.array([0, 3, 1], dtype=np.int32), 3))
        await held(asked, request)
        await held(asked)  # without media
    sizes = [[(row["encoder_input_size"], row["encoder_matched_size"]) for row in rows] for rows in server.calls]
    assert sizes == [[(3, 0), (3, 3), (3, 1)], [(0, 0)] * 3]
    assert not asked.plugin.warnings


@pytest.mark.parametrize(
    ("name", "value", "rows"),
    [("LATENCY_COALESCE_WINDOW_MS", "0", [3, 3, 3]), ("LATENCY_MAX_COALESCED_ROWS", "6", [6, 3])],
)
async def test_window_and_rows_of_a_call_can_be_set(world, server, name, value, rows):
    async with asking(world, server, variables={"LATENCY_COALESCE_WINDOW_MS": "50", name: value}) as asked:
        await asyncio.gather(*(held(asked) for _ in range(3)))
    assert [len(call) for call in server.calls] == rows


async def test_simulated_request_and_one_without_a_prompt_ask_nobody(world, server):
    async with asking(world, server) as asked:
        assert (await held(asked, dry_run=True)).source == "rates"
        assert (await held(asked, prompt_tokens=0)).source == "rates"
    assert server.calls == []


async def test_rates_are_used_when_the_answer_does_not_come_in_time(world, server):
    server.hold = asyncio.Event()
    async with asking(world, server, predictionTimeout="20ms") as asked:
        assert (await held(asked)).source == "rates"
        assert asked.metric("latency_server_failures", "no answer") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"status": 500},
        {"answer": {"predictions": []}},
        {"answer": {"predictions": [{"ttft_ms": -1.0, "tpot_ms": 1.0}] * 3}},
        {"answer": {"predictions": [{"ttft_ms": 1.0, "tpot_ms": None}] * 3}},
        {"answer": {"predictions": [{"ttft_ms": 1.0, "tpot_ms": 1.0}] * 3, "failed_predictions": 1}},
        {"answer": "soon"},
    ],
)
async def test_rates_are_used_when_the_answer_is_of_no_use_and_the_server_is_left_alone(world, server, change):
    async with asking(world, server) as asked:
        for name, value in change.items():
            setattr(server, name, value)
        server.is_ready = False
        for _ in range(4):
            assert (await held(asked)).source == "rates"
        assert len(server.calls) == 3
        assert asked.metric("latency_server_ready", server.url) == 0
        assert asked.metric("latency_server_failures", "not ready") == 1
        (problem,) = asked.plugin.inputs.problems
        assert (problem.file, problem.reason.startswith("not used for predictions: ")) == (server.url, True)


async def test_server_is_used_again_once_its_status_is_good(world, server):
    async with asking(world, server) as asked:
        server.status = 503
        for _ in range(3):
            await held(asked)
        server.status = 200
        await until(is_ready(asked, server), "the server is ready again")
        assert not asked.plugin.inputs.problems
        assert (await held(asked)).source == "server"


async def test_server_that_is_down_at_the_start_is_used_when_it_comes_up(world, capsys):
    with reserved_ports(1) as (port,):
        server = PredictionServer(url=f"http://127.0.0.1:{port}")
        async with following(world(environment={"PREDICTION_SERVER_URL": server.url}, streamingMode=True)) as asked:
            await until(lambda: "not used" in capsys.readouterr().out, "the picker says so")
            assert (await held(asked)).source == "rates"
            async with server.serving(port):
                await until(is_ready(asked, server), "the server is ready")


async def test_of_two_servers_the_one_that_is_ready_is_asked(world, server):
    with reserved_ports(1) as (port,):
        async with asking(
            world, server, variables={"PREDICTION_SERVER_URL": f"http://127.0.0.1:{port}, {server.url}/"}
        ) as asked:
            for _ in range(4):
                assert (await held(asked)).source == "server"


async def test_too_many_endpoints_or_calls_are_predicted_from_rates(world, server):
    async with asking(world, server, variables={"LATENCY_MAX_BULK_SIZE": "2"}) as asked:
        assert (await held(asked)).source == "rates"
        assert asked.metric("latency_server_failures", "too many endpoints") == 1
    server.hold = asyncio.Event()
    variables = {"LATENCY_MAX_BULK_SIZE": "3", "LATENCY_MAX_CONCURRENT_DISPATCHES": "1"}
    async with asking(world, server, variables=variables) as asked:
        waiting = asyncio.create_task(held(asked))
        await until(lambda: server.calls, "the first request is held")
        assert (await held(asked)).source == "rates"
        assert asked.metric("latency_server_failures", "too many calls") == 1
        server.hold.set()
        assert (await waiting).source == "server"


async def test_client_that_leaves_does_not_end_the_call_of_others(world, server):
    server.hold = asyncio.Event()
    async with asking(world, server, variables={"LATENCY_COALESCE_WINDOW_MS": "50"}) as asked:
        leaving, staying = (asyncio.create_task(held(asked)) for _ in range(2))
        await until(lambda: server.calls, "both are held")
        leaving.cancel()
        server.hold.set()
        assert (await staying).source == "server"


async def test_endpoint_that_is_replaced_during_the_hold_has_no_prediction(world, server):
    async with asking(world, server) as asked:
        request = asked.request()
        await held(asked, request)
        endpoints = [*asked.pool.snapshot.endpoints.values]
        endpoints[1] = Endpoint("new", "10.9.9.9", 8000)
        replaced = msgspec.structs.replace(asked.pool.snapshot, endpoints=Records(tuple(endpoints)))
        asked.plugin.produce(request, Candidates(replaced, asked.pool.slots, now=asked.clock.now()))
        assert request.get(LATENCY_PREDICTION).predicted.tolist() == [True, False, True]


async def test_measured_times_are_sent_with_the_load_at_the_pick(world, server):
    async with asking(world, server) as asked:
        request = asked.send(1, prefill=2, held=(0, 5, 10))
        asked.clock.advance(1)
        asked.answer(request, 1, first=0.2, total=0.4, tokens=21)
        await until(lambda: len(server.entries) == 2, "the entries are there")
        assert asked.metric("latency_training_entries", "sent") == 2
    first, further = server.entries
    assert (first["actual_ttft_ms"], first["actual_tpot_ms"]) == (200.0, 0.0)
    assert (first["kv_cache_percentage"], first["prefix_cache_score"]) == (0.3, 1.0)  # of the prefill endpoint
    assert (further["actual_ttft_ms"], further["actual_tpot_ms"]) == (0.0, pytest.approx(10.0))
    assert (further["kv_cache_percentage"], further["num_request_running"]) == (0.2, 1)
    assert further["timestamp"].endswith("+00:00")


async def test_entries_that_cannot_be_sent_are_lost_and_counted(world, server):
    async with asking(world, server) as asked:
        server.status = 500
        asked.answer(asked.send(), first=0.2)
        await until(lambda: asked.metric("latency_training_entries", "lost"), "they are lost")
