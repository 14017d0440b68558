# SPDX-License-Identifier: Apache-2.0
"""Which decisions are recorded, from the pick to the end of the response; and what that costs those that are not."""

import gc
import weakref
from pathlib import Path

import msgspec
import pytest

from epp.config import Builder, assemble, load_text
from epp.explain import building as recording_module
from epp.explain import recorder as recorder_module
from epp.explain.record import DecisionRecord, ShadowRun
from epp.explain.recorder import Keep, Recorder, Recording, SamplingRecorder, Setup, recorder_of
from epp.framework import Endpoint, Headers, ManualClock
from epp.framework.errors import RequestError
from epp.framework.registry import Registry
from epp.lab.traces.reading import open_trace
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, DirectorObserver, Observers, Routing, Runtime, Seeds
from epp.telemetry.settings import DecisionSettings

BODY = b'{"model":"m","prompt":"hello"}'
EMPTY = 'plugins: [{type: by-label, parameters: {label: zone, validValues: ["none"]}}]'


def headers(request_id: str = "r1", **more: str) -> Headers:
    return Headers([(":path", "/v1/completions"), ("x-request-id", request_id), *more.items()])


class World:
    """A director over four endpoints, with a recorder."""

    def __init__(self, plugins: str = "", *, path: Path | None = None, send: Keep | None = None, **settings) -> None:
        self.clock = ManualClock(1000.0)
        store = Datastore(self.clock)
        store.replace([Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("abcd", 1)])
        text = f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n{plugins}"
        pipeline = assemble(load_text(text), Builder(Registry(), self.clock)).pipeline
        setup = Setup(lambda: pipeline.scheduler.profiles, lambda: 7, store.snapshot)
        self.recorder = recorder_of(DecisionSettings(file=path, **settings), self.clock, setup, send)
        self.director = Director(Runtime(store, self.clock, Observers(self.recorder)), pipeline, seeds=Seeds(b"test"))

    def route(self, request_id: str = "r1", *, body: bytes = BODY, **more: str) -> Routing:
        return self.director.route(headers(request_id, **more), body, None)

    def fail(self, count: int = 1) -> None:
        for number in range(count):
            with pytest.raises(RequestError):
                self.director.route(headers(f"f{number}"), BODY, None)

    def make_records(self) -> None:
        while self.recorder._waiting:  # noqa: SLF001  what `run` does
            self.recorder._make_next()  # noqa: SLF001

    def records(self) -> list[DecisionRecord]:
        """Make all records; return them, newest first."""
        self.make_records()
        return [msgspec.json.decode(data, type=DecisionRecord) for data in self.recorder.ring.latest(10_000)]


def lines_of(world: World, path: Path) -> list[DecisionRecord]:
    """What is in the file, which is closed."""
    world.recorder.file.close()
    return [msgspec.json.decode(line, type=DecisionRecord) for line in path.read_bytes().splitlines()]


def test_tf_5_sampled_request_is_recorded_at_its_pick_and_completed_at_its_end():
    world = World(sample_rate=1)
    routing = world.route()
    (record,) = world.records()
    assert (record.kind, record.request_id, record.recorded_for) == ("routed", "r1", "sampled")
    assert record.config_generation == 7
    assert record.at == "1970-01-01T00:16:40.000Z"
    assert record.ending is None
    assert record.pick.endpoint == routing.served.name

    world.clock.advance(0.5)
    routing.response_started(200, Headers, event_stream=False)
    routing.response_piece(b"{}", last=True, now=world.clock.now)
    world.clock.advance(0.25)
    routing.complete(Cause.NATURAL)
    (after,) = world.records()
    assert after.id == record.id
    assert (after.ending.cause, after.ending.status, after.ending.response_bytes) == ("natural", 200, 2)
    assert (after.ending.served_endpoint, after.ending.is_fallback) == (routing.served.name, False)
    assert (after.timings.first_byte, after.timings.total, after.timings.decision) == (0.5, 0.75, 0)
    assert after.profiles == record.profiles


def test_request_that_ends_before_its_record_is_made_has_one_record():
    world = World(sample_rate=1)
    world.route().complete(Cause.CLIENT_DISCONNECT)
    (record,) = world.records()
    assert record.ending.cause == "client-disconnect"


def test_share_of_requests_is_sampled():
    world = World(sample_rate=0.25)
    for _ in range(400):
        world.route().complete(Cause.NATURAL)
        world.make_records()
    assert 70 < len(world.records()) < 130  # of 400, 100 on average, with a deviation of 9; the seeds are fixed


def test_request_can_ask_where_that_is_allowed():
    world = World(asked_by_header=True)
    world.route("asks", **{"x-gateway-decision-record": "true"})
    world.route("does not")
    world.route("declines", **{"x-gateway-decision-record": "false"})
    (record,) = world.records()
    assert (record.request_id, record.recorded_for) == ("asks", "asked")


def test_nothing_of_a_successful_request_is_recorded_or_told_where_it_cannot_ask_for_that():
    world = World()
    routing = world.route(**{"x-gateway-decision-record": "true"})
    routing.response_started(200, Headers, event_stream=False)
    routing.complete(Cause.NATURAL)
    assert world.records() == []
    assert type(World().recorder) is Recorder
    assert Observers(World().recorder).routed.__func__ is DirectorObserver.routed
    assert type(World(asked_by_header=True).recorder) is SamplingRecorder


@pytest.mark.parametrize(("cause", "status"), [(Cause.NATURAL, 500), (Cause.ERROR, 0), (Cause.SERVER_LOST, 200)])
def test_routed_request_that_fails_is_recorded(cause: Cause, status: int):
    world = World()
    routing = world.route()
    routing.status = status
    routing.complete(cause)
    (record,) = world.records()
    assert (record.kind, record.recorded_for) == ("routed", "failed")
    assert (record.ending.cause, record.ending.status) == (cause.value, status)
    assert record.profiles[0].candidates


def test_tf_5_refused_request_is_recorded_with_the_filters_that_left_none():
    world = World(EMPTY)
    world.fail()
    (record,) = world.records()
    assert (record.kind, record.recorded_for, record.request_id) == ("refused", "failed", "f0")
    assert (record.failure.status, record.failure.reason) == (429, "rejected-constraint")
    assert [(step.before, step.after) for step in record.profiles[0].filters] == [(4, 0)]
    assert record.pick is None


def test_request_that_is_refused_after_its_scheduling_has_the_scores_in_its_record():
    world = World()
    with pytest.raises(RequestError):
        world.route(prefer="if-available")  # nothing is cached anywhere
    (record,) = world.records()
    assert (record.failure.status, record.pick) == (412, None)
    assert len(record.profiles[0].candidates) == record.seen.screened == 4


def test_request_that_could_not_be_read_is_recorded():
    world = World()
    with pytest.raises(RequestError):
        world.director.route(headers(), b"{", None)
    (record,) = world.records()
    assert (record.request_id, record.asked.path) == ("r1", "/v1/completions")
    assert (record.seen.endpoints, record.seen.available, record.seen.screened) == (4, 4, 0)
    assert record.failure.status == 400


def test_failures_of_a_flood_are_bounded_and_counted():
    world = World(EMPTY)
    world.fail(200)
    assert len(world.records()) == 50
    assert world.recorder.lost["rate"] == 150
    world.clock.advance(1.0)
    world.fail(200)
    assert len(world.records()) == 60


def test_records_that_nobody_makes_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(recorder_module, "_MOST_WAITING", 3)
    world = World(sample_rate=1)
    for _ in range(5):
        world.route()
    assert len(world.records()) == 3
    assert world.recorder.lost["busy"] == 2


def test_requests_under_way_are_bounded(monkeypatch):
    monkeypatch.setattr(recorder_module, "_MOST_OPEN", 2)
    world = World(sample_rate=1)
    first = world.route()
    for _ in range(3):
        world.route()
    assert (len(world.records()), world.recorder.lost["busy"]) == (2, 2)
    first.complete(Cause.NATURAL)
    world.route()
    assert len(world.records()) == 3


def test_snapshot_is_let_go_once_the_record_is_made():
    world = World(sample_rate=1)
    routing = world.route()
    totals = weakref.ref(routing.result.primary.totals)
    world.records()
    routing.complete(Cause.NATURAL)
    world.records()
    gc.disable()
    try:
        del routing
        assert totals() is None
    finally:
        gc.enable()


def test_file_has_each_decision_once_when_it_has_ended(tmp_path):
    path = tmp_path / "decisions.jsonl"
    world = World(sample_rate=1, path=path)
    routing = world.route()
    world.records()
    routing.complete(Cause.NATURAL)
    world.records()
    (line,) = lines_of(world, path)
    assert line.ending is not None


def test_file_with_prefixes_is_a_trace(tmp_path):
    path = tmp_path / "decisions.jsonl"
    world = World(sample_rate=1, path=path, prefixes=True)
    body = b'{"model":"m","prompt":"%s"}' % (b"hello " * 100)
    usage = b'{"usage":{"prompt_tokens":150,"completion_tokens":7,"total_tokens":157}}'
    routings = []
    for _ in range(2):
        routings.append(world.route(body=body, **{"x-gateway-inference-fairness-id": "t"}))
        world.clock.advance(1.5)
    for routing in reversed(routings):  # the first request ends last
        routing.response_started(200, Headers, event_stream=False)
        routing.response_piece(usage, last=True, now=world.clock.now)
        routing.complete(Cause.NATURAL)
    world.records()
    lines_of(world, path)
    first, second = open_trace(path)
    assert (first.at, second.at) == (0, 1.5)
    assert (first.prompt_tokens, first.output_tokens, first.model, first.tenant) == (150, 7, "m", "t")
    assert len(first.blocks) == 2  # of 600 bytes, at 256 each
    assert first.blocks == second.blocks
    assert b"hello" not in path.read_bytes()


@pytest.mark.parametrize("runs", [[ShadowRun(profile="late")], []])
def test_gie_9_line_of_a_decision_waits_for_its_shadows_or_for_word_that_they_do_not_come(tmp_path, runs):
    path = tmp_path / "decisions.jsonl"
    world = World(sample_rate=1, path=path)
    first, second = world.route("r1"), world.route("r2")
    world.recorder.expect_shadows(first.request)
    for routing in (first, second):
        routing.complete(Cause.NATURAL)
    world.records()
    world.recorder.add_shadows(first.request, runs)
    world.records()
    assert [(line.request_id, list(line.shadows)) for line in lines_of(world, path)] == [("r2", []), ("r1", runs)]


async def test_gie_9_line_that_waits_for_shadows_as_the_picker_ends_is_written_without_them(tmp_path):
    path = tmp_path / "decisions.jsonl"
    world = World(sample_rate=1, path=path)
    routing = world.route()
    world.recorder.expect_shadows(routing.request)
    routing.complete(Cause.NATURAL)
    await world.recorder.close()
    (line,) = lines_of(world, path)
    assert line.shadows == ()
    assert line.ending is not None


async def test_records_are_made_by_the_task_and_the_rest_at_the_end(tmp_path):
    path = tmp_path / "decisions.jsonl"
    world = World(EMPTY, path=path)
    world.fail(3)
    await world.recorder.close()
    assert len(path.read_bytes().splitlines()) == 3


def test_routed_request_whose_record_fails_is_lost_once(monkeypatch):
    world = World(sample_rate=1)
    monkeypatch.setattr(Recording, "made", lambda self: 1 / 0)
    routing = world.route()
    world.records()
    routing.complete(Cause.NATURAL)
    assert world.records() == []
    assert world.recorder.lost["error"] == 1


def test_record_that_fails_or_is_too_large_is_lost_and_stops_no_other(monkeypatch):
    world = World(EMPTY)
    made = Recording.made
    monkeypatch.setattr(Recording, "made", lambda self: 1 / 0 if self.request_id == "f0" else made(self))
    world.fail(2)
    assert [record.request_id for record in world.records()] == ["f1"]
    assert world.recorder.lost["error"] == 1
    monkeypatch.setattr(recording_module, "_MOST_BYTES", 10)
    world.fail(2)
    assert [record.request_id for record in world.records()] == ["f1"]
    assert world.recorder.lost["error"] == 3


@pytest.mark.parametrize("awaits_shadows", [False, True])
async def test_worker_sends_its_records_to_the_process_that_keeps_them(tmp_path, awaits_shadows):
    main = World(path=tmp_path / "decisions.jsonl")
    workers = [World(path=tmp_path / "no file", send=main.recorder.keep, sample_rate=1) for _ in range(2)]
    for number, worker in enumerate(workers):
        routing = worker.route(f"r{number}")
        if awaits_shadows:
            worker.recorder.expect_shadows(routing.request)
        assert worker.records() == []
        routing.complete(Cause.NATURAL)
        assert worker.records() == []
        await worker.recorder.close()
    assert [record.request_id for record in main.records()] == ["r1", "r0"]
    lines = lines_of(main, tmp_path / "decisions.jsonl")
    assert len({line.id for line in lines}) == 2
    assert all(line.ending is not None for line in lines)
    assert main.recorder.recorded == {"sampled": 2, "asked": 0, "failed": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["decisions.jsonl"]
