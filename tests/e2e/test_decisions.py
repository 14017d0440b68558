# SPDX-License-Identifier: Apache-2.0
"""Decisions of a running picker: who may ask for a record, where it goes, and what a full disk does to requests."""

import json
from pathlib import Path

import aiohttp
import grpc
import msgspec
import pytest

from epp.explain.record import DecisionRecord
from tests.support.commands import command
from tests.support.exchanges import BODY, response_body, response_headers
from tests.support.serving import PLAIN, request, serving
from tests.support.waiting import read_until, until

RECORD = "x-gateway-decision-record"


async def served_once(channel: grpc.aio.Channel, request_id: str, status: int = 200, **headers: str) -> set[str]:
    """Send a request as a gateway does, and its answer; return the names of the headers that must not be passed on."""
    call = await request(channel, BODY, **{"x-request-id": request_id, **headers})
    removed = set((await call.read()).request_headers.response.header_mutation.remove_headers)
    await call.read()
    for message in (response_headers(str(status)), response_body(b"{}", end=True)):
        await call.write(message)
        await call.read()
    await call.done_writing()
    await call.code()
    return removed


class Decisions:
    """The decisions of a picker, from its admin port."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self.url = url

    async def get(self, query: str = "") -> dict:
        async with self._http.get(f"{self.url}/api/decisions{query}") as found:
            assert found.status == 200
            return await found.json()

    async def ended(self, count: int) -> list[DecisionRecord]:
        """Wait until so many decisions are there, and have ended; return them, newest first."""

        async def decisions() -> list[DecisionRecord]:
            return msgspec.convert((await self.get())["decisions"], list[DecisionRecord])

        def have_ended(found: list[DecisionRecord]) -> bool:
            return len(found) == count and all(each.ending or each.failure for each in found)

        return await read_until(decisions, have_ended, f"{count} decisions have ended")


@pytest.mark.parametrize(
    ("flags", "recorded"),
    [
        ((), []),
        (("--trusted-gateways=10.0.0.0/8",), []),
        (("--trusted-gateways=127.0.0.0/8",), ["asks"]),
        (("--decision-sample-rate=1",), ["does-not", "asks"]),
    ],
)
async def test_tf_5_gateway_that_is_trusted_can_ask_for_a_record(sim, flags, recorded):
    async with (
        serving(sim, PLAIN, "--admin-port=0", *flags) as served,
        served.channel() as channel,
        aiohttp.ClientSession() as http,
    ):
        decisions = Decisions(http, f"http://{served.admin}")
        assert RECORD in await served_once(channel, "asks", **{RECORD: "true"})
        await served_once(channel, "does-not")
        await served_once(channel, "fails", status=500)
        found = await decisions.ended(len(recorded) + 1)
        assert [each.request_id for each in found] == ["fails", *recorded]
        if not recorded:
            assert found[0].recorded_for == "failed"


async def test_tf_5_record_tells_the_whole_way_of_a_request(sim):
    async with (
        serving(sim, PLAIN, "--admin-port=0", "--decision-sample-rate=1") as served,
        served.channel() as channel,
        aiohttp.ClientSession() as http,
    ):
        decisions = Decisions(http, f"http://{served.admin}")
        await served_once(channel, "whole")
        (record,) = await decisions.ended(1)
        assert (record.kind, record.recorded_for, record.config_generation) == ("routed", "sampled", 1)
        assert record.pick is not None
        assert (record.pick.endpoint, record.pick.address) == ("only", sim.address)
        assert record.seen is not None
        assert (record.seen.endpoints, record.seen.screened) == (1, 1)
        for run in record.profiles:
            for each in run.candidates:
                assert sum(each.contributions) == pytest.approx(each.total, abs=1e-4)
        assert record.ending is not None
        assert (record.ending.cause, record.ending.status) == ("natural", 200)
        assert 0 < record.timings.scheduling < record.timings.total
        async with http.get(f"{decisions.url}/api/decisions/{record.id}") as found:
            assert msgspec.json.decode(await found.read(), type=DecisionRecord) == record
        assert (await served.metrics())["llm_d_epp_decision_records_total"][frozenset({"recorded_for=sampled"})] == 1

        async with command("explain", "--last", f"--admin={decisions.url}") as explained:
            assert "whole" in await explained.says("request  ")
            await explained.says(f"only at {sim.address}")
            assert await explained.end() == 0


async def test_file_that_cannot_be_written_stops_no_request_and_is_said(sim, tmp_path: Path):
    path = tmp_path / "decisions.jsonl"
    flags = ("--decision-sample-rate=1", f"--decision-file={path}", "--drain-quiet-period=10ms")
    async with serving(sim, PLAIN, *flags) as served, served.channel() as channel:
        await served_once(channel, "first")
        await until(lambda: b'"first"' in path.read_bytes(), "the first is written")
        path.rename(tmp_path / "moved")
        path.mkdir()  # nobody can write there, not even root
        await served_once(channel, "lost")
        await until(lambda: "decisions are not written" in str(served.command), "the log says so")
        shown = (await served.health_page())[1]
        assert shown["ready"]
        assert str(path) in shown["decision_file"]["problem"]
        assert shown["decision_file"]["lost"] == 1
        path.rmdir()
        await served_once(channel, "again")
        await until(lambda: "decisions are written again" in str(served.command), "the log says so")
        assert "decision_file" not in (await served.health_page())[1]
        await served_once(channel, "last")
        served.command.terminate()
        assert await served.command.end() == 0
    written = [json.loads(line)["requestId"] for line in path.read_bytes().splitlines()]
    assert written == ["again", "last"]
    async with command("explain", f"--file={path}", "--request=again") as explained:
        assert "again" in await explained.says("request  ")
