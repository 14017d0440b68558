# SPDX-License-Identifier: Apache-2.0
"""Requests that go nowhere: they are decided like others, and nothing else is ever decided differently for them."""

import asyncio
import dataclasses
from collections.abc import Iterator
from textwrap import dedent

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from epp.config import Builder, assemble, load_text
from epp.framework import Admitter, Endpoint, Headers, ManualClock, Request
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.errors import ModelMissingError, RequestError
from epp.framework.plugin import SchedulingObserver
from epp.framework.refusals import (
    AllBusyError,
    NoEndpointsError,
    OverQuotaError,
    QuotaExceededError,
    SheddableDroppedError,
    StartingError,
)
from epp.framework.registry import Registry
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import ACCELERATOR, KV_USAGE, RUNNING, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, DirectorObserver, PendingRequest, Routing, Runtime, Seeds, Subset
from epp.routing.director.observers import _EVENTS
from epp.routing.director.simulation import Simulated
from tests.support.memory_snapshot import footprint
from tests.unit.director.configurations import ALONE, BODIES, HEAD, HEADERS, PARAMETERS, POLICIES, TOGETHER


class Told(DirectorObserver, SchedulingObserver):
    """Notes every event, by name and by what it is about."""

    def __init__(self) -> None:
        self.events: list[str] = []
        for event in _EVENTS:
            setattr(self, event, lambda *args, _event=event, **_more: self._note(_event, *args))

    def _note(self, event: str, *args: object) -> None:
        names = [getattr(each, "name", None) or getattr(each, "plugin_type", None) for each in args]
        self.events.append(" ".join([event, *(name for name in names if isinstance(name, str))]))


def text_of(config: str) -> str:
    return config if "kind:" in config else HEAD + dedent(config)


def fields_of(body: bytes, headers: list) -> Headers:
    return Headers([(":path", "/v1/chat/completions" if b"messages" in body else "/v1/completions"), *headers])


class World:
    """A director over six endpoints of different price, of which everything is noted."""

    def __init__(self, config: str, *more: type) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.endpoints = [
            Endpoint(f"e{i}", f"10.0.0.{i}", 8000, labels={"zone": "ab"[i % 2], "role": "decode", "app": "x"})
            for i in range(6)
        ]
        self.store.replace(self.endpoints)
        for number, endpoint in enumerate(self.endpoints):
            tag = AcceleratorTag(
                model="a100" if number < 3 else "t4",
                classes=("a100" if number < 3 else "t4",),
                count=1,
                memory_bytes=2**34,
                cost=Cost(per_hour=2.0 if number < 3 else 0.5),
            ).located()
            self.store.tag(endpoint, Report({}, {ACCELERATOR: tag}))
        self.told = Told()
        self.registry = Registry()
        for cls in more:
            self.registry.register(cls)
        self.assembly = self.assemble(config)
        self.director = Director(
            Runtime(self.store, self.clock, self.told), self.assembly.pipeline, seeds=Seeds(b"test")
        )
        self.director.use_policies(POLICIES)
        self.picks: list[str] = []
        self.open: list[Routing] = []
        self.held: list[PendingRequest] = []

    def assemble(self, config: str):
        builder = Builder(self.registry, self.clock, experimental=True)
        return assemble(load_text(text_of(config)), builder, observer=self.told if hasattr(self, "told") else None)

    def report(self, number: int, waiting: float, running: float, kv_usage: float) -> None:
        values = {WAITING: waiting, RUNNING: running, KV_USAGE: kv_usage}
        self.store.report(self.endpoints[number], Report(values, {}))

    def route(self, body: bytes, headers: list) -> None:
        try:
            routing = self.director.route(fields_of(body, headers), body, None)
        except RequestError as error:
            self.picks.append(type(error).__name__)
            return
        if isinstance(routing, PendingRequest):
            self.picks.append("held")
            self.held.append(routing)
            return
        self.picks.append(" ".join(target.name for target in routing.result.targets))
        self.open.append(routing)

    def end_one(self) -> None:
        if self.open:
            self.open.pop(0).complete(Cause.NATURAL)

    def simulate(
        self, body: bytes = BODIES[0], headers: list = (), subset: Subset | None = None, seed: int = 1, **options
    ) -> Simulated:
        simulation = self.director.simulation(**options)
        return simulation.run(simulation.read(fields_of(body, headers), body, subset), seed=seed)

    @property
    def remembered(self) -> object:
        """All that lasts: of every plugin, the datastore, the director and what it has told."""
        self.store.snapshot()  # which any request would take
        director = {name: each for name, each in vars(self.director).items() if name not in {"_observer", "_guard"}}
        return (
            len(self.told.events),
            footprint((dict(self.assembly.instances.by_name), self.store, director)),
            {name: [sample.value for sample in each.samples] for name, each in self.assembly.instances.by_name.items()},
        )

    def close(self) -> None:
        for held in self.held:
            held.abandon()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("simulate"), st.sampled_from(BODIES), st.sampled_from(HEADERS), st.booleans()),
        st.tuples(st.just("route"), st.sampled_from(BODIES), st.sampled_from(HEADERS)),
        st.tuples(
            st.just("report"), st.integers(0, 5), st.sampled_from([0.0, 3.0, 30.0]), st.sampled_from([0.0, 0.5, 0.95])
        ),
        st.tuples(st.just("end")),
        st.tuples(st.just("pass"), st.sampled_from([0.05, 1.0, 90.0])),
        st.tuples(st.just("simulate"), st.sampled_from(BODIES), st.sampled_from(HEADERS), st.booleans()),
    ),
    min_size=16,
    max_size=30,
)
FEW = settings(max_examples=max(1, settings().max_examples // 50), phases=[Phase.generate])
"""Worlds are expensive: they are neither many nor made smaller."""


async def play(config: str, steps: list, *, simulating: bool) -> World:
    """Play steps in a world of their own; where they simulate, nothing that lasts may change."""
    world, before = World(config), None
    for what, *given_ in steps:
        if what != "simulate":
            before = None
        match what:
            case "route":
                world.route(*given_)
            case "report":
                number, load, kv_usage = given_
                world.report(number, load, load, kv_usage)
            case "end":
                world.end_one()
            case "pass":
                world.clock.advance(*given_)
            case "simulate" if simulating:
                body, headers, made_up = given_
                before = before or world.remembered
                world.simulate(body, headers, snapshot=other_pool(world) if made_up else None)
                after = world.remembered
                assert before == after or list(differences(before, after)) == []
    world.close()
    return world


def differences(before: object, after: object, place: str = "") -> Iterator[str]:
    """Yield where two footprints differ."""
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            named = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)
            yield from differences(one, other, f"{place}.{one[0] if named else number}")
    elif before != after:
        yield f"{place}: {before!r:.200} -> {after!r:.200}"


def other_pool(world: World):
    """Return a snapshot in which every endpoint has other labels, hardware and load."""
    snapshot = world.store.snapshot()
    endpoints = type(snapshot.endpoints)(
        tuple(None if each is None else dataclasses.replace(each, labels={}) for each in snapshot.endpoints.values)
    )
    tags = type(snapshot.endpoints)(tuple(AcceleratorTag(model="h100") for _ in snapshot.endpoints.values))
    return msgspec.structs.replace(
        snapshot,
        endpoints=endpoints,
        columns={**snapshot.columns, WAITING.name: np.full(snapshot.capacity, 4.0)},
        attributes={**snapshot.attributes, ACCELERATOR.name: tags},
    )


@pytest.mark.parametrize("kind", ALONE)
@FEW
@given(steps=STEPS)
def test_tf_6_no_plugin_remembers_a_request_that_goes_nowhere(kind, steps):
    parameters = PARAMETERS.get(kind, "{}")
    asyncio.run(play(f"plugins: [{{type: {kind}, parameters: {parameters}}}]", steps, simulating=True))


@pytest.mark.parametrize("config", TOGETHER)
@FEW
@given(steps=STEPS)
def test_tf_6_requests_are_decided_as_if_nothing_had_been_simulated(config, steps):
    with_them = asyncio.run(play(TOGETHER[config], steps, simulating=True))
    without = asyncio.run(play(TOGETHER[config], steps, simulating=False))
    assert with_them.picks == without.picks
    assert with_them.told.events == without.told.events


class Holds(Admitter):
    """Lets every request wait for what never comes."""

    plugin_type = "holds"

    async def _wait(self) -> None:
        await asyncio.Event().wait()

    def admit(self, request: Request, candidates):
        return self._wait()


class Breaks(Admitter):
    plugin_type = "breaks"

    def admit(self, request: Request, candidates):
        raise RuntimeError("no")


QUEUES = "plugins: [{type: queue-scorer}]"


def test_gie_17_the_same_request_with_the_same_seed_is_decided_the_same():
    world = World("plugins: [{type: queue-scorer}, {type: random-picker, parameters: {maxNumOfEndpoints: 3}}]")
    world.route(BODIES[0], [])
    (routing,) = world.open
    world.end_one()
    found = world.simulate(seed=routing.request.seed)
    assert isinstance(found.outcome, SchedulingResult)
    assert [each.name for each in found.outcome.targets] == [each.name for each in routing.result.targets]
    others = {world.simulate(seed=seed).outcome.targets[0].name for seed in range(40)}
    assert len(others) > 2


def test_tf_6_session_that_is_only_asked_about_ends_when_it_would_have():
    parameters = "{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 60}}"
    world = World(f"plugins: [{{type: session-affinity-scorer, parameters: {parameters}}}]")
    session = [("x-session-id", "s1")]
    world.route(BODIES[0], session)
    world.clock.advance(50.0)
    bound = world.simulate(headers=session).outcome
    assert bound.targets[0].name == world.picks[0]
    assert bound.primary.scores[0].scores.sum() == 1.0
    world.clock.advance(20.0)
    assert world.simulate(headers=session).outcome.primary.scores[0].scores.sum() == 0.0


def test_tf_6_seeds_of_requests_go_on_as_if_nothing_had_been_simulated():
    one, other = World(QUEUES), World(QUEUES)
    for _ in range(5):
        one.simulate()
    one.route(BODIES[0], [])
    other.route(BODIES[0], [])
    assert one.open[0].request.seed == other.open[0].request.seed


def test_tf_6_another_configuration_decides_with_the_state_of_plugins_that_both_have():
    world = World(TOGETHER["everything learned"])
    world.route(BODIES[0], [])
    there = world.picks[-1]
    world.end_one()
    other = HEAD + "plugins: [{type: approx-prefix-cache-producer}, {type: prefix-cache-scorer}]"
    builder = Builder(world.registry, world.clock, previous=world.assembly.instances.by_name)
    pipeline = assemble(load_text(other), builder).pipeline
    before = world.remembered
    found = world.simulate(pipeline=pipeline)
    assert [trace.plugin for trace in found.outcome.primary.scores] == ["prefix-cache-scorer"]
    assert found.outcome.targets[0].name == there  # where its prompt is
    assert list(differences(before, world.remembered)) == []


@pytest.mark.parametrize(
    ("body", "subset", "error"),
    [(b'{"prompt":"hello"}', None, ModelMissingError), (BODIES[0], ["10.9.9.9"], NoEndpointsError)],
)
def test_tf_6_what_would_be_refused_has_the_error_of_its_kind(body, subset, error):
    world = World(QUEUES)
    found = world.simulate(body, subset=None if subset is None else Subset.parse(subset))
    assert isinstance(found.outcome, error)
    assert world.told.events == []


def test_subset_and_hooks_count_as_for_other_requests():
    world = World(QUEUES)
    found = world.simulate(headers=[*HEADERS[2]], subset=Subset.parse(["10.0.0.3", "10.0.0.4"]))
    assert (found.eligible, found.screened) == (2, 2)
    assert found.request.priority == -1
    assert found.request.objective == "batch"
    assert found.outcome.targets[0].name in {"e3", "e4"}


def test_sheddable_request_to_full_servers_is_refused_and_others_are_not():
    world = World(QUEUES)
    for number in range(6):
        world.report(number, 50.0, 50.0, 0.99)
    assert isinstance(world.simulate(headers=HEADERS[2]).outcome, SheddableDroppedError)
    assert isinstance(world.simulate().outcome, SchedulingResult)


async def test_request_that_would_wait_for_room_says_so_and_where_it_would_go_if_it_went_now():
    world = World(TOGETHER["priorities"])
    for number in range(6):
        world.report(number, 50.0 + number, 50.0, 0.99)
    found = world.simulate()
    assert found.waits == "room at an endpoint"
    assert found.outcome.targets[0].name == "e0"
    assert world.director.flow.queues.requests == 0
    world.route(BODIES[0], [])
    assert world.picks == ["held"]
    assert world.simulate().waits == "its turn: 1 wait already"
    world.report(3, 0.0, 0.0, 0.0)
    world.close()
    found = world.simulate()
    assert (found.waits, found.outcome.targets[0].name) == ("", "e3")


def test_tf_10_request_beyond_its_quota_is_refused_and_nothing_is_charged():
    world = World(TOGETHER["tenants with quotas"])
    gold = HEADERS[1]
    for _ in range(5):
        assert isinstance(world.simulate(headers=gold).outcome, SchedulingResult)
    world.route(BODIES[2], gold)
    world.route(BODIES[2], gold)
    assert isinstance(world.simulate(BODIES[2], gold).outcome, QuotaExceededError)
    assert isinstance(world.simulate(BODIES[2]).outcome, SchedulingResult)
    world.end_one()
    assert isinstance(world.simulate(BODIES[2], gold).outcome, SchedulingResult)


def test_request_that_is_too_large_for_its_tenant_or_comes_before_the_start_is_refused():
    world = World("plugins: [{type: tenant-quotas, parameters: {default: {single: {promptTokens: 10}}}}]")
    assert isinstance(world.simulate().outcome, OverQuotaError)
    world.director.is_closed = True
    assert isinstance(world.simulate().outcome, StartingError)


async def test_request_that_an_admitter_would_hold_says_so():
    world = World("plugins: [{type: queue-scorer}, {type: holds}]", Holds)
    found = world.simulate()
    assert found.waits == "the admitter holds"
    assert isinstance(found.outcome, SchedulingResult)


def test_problem_of_a_plugin_is_told_and_not_counted():
    world = World("plugins: [{type: queue-scorer}, {type: breaks}]", Breaks)
    found = world.simulate()
    assert [problem.split(":")[0] for problem in found.problems] == ["breaks"]
    assert world.told.events == []


def test_made_up_load_counts_for_one_request():
    world = World(QUEUES)
    found = world.simulate(snapshot=other_pool(world))
    assert set(found.outcome.primary.candidates.values(WAITING)) == {4.0}
    assert np.isnan(world.simulate().outcome.primary.candidates.values(WAITING)).all()


def test_filters_that_leave_nobody_say_how_far_they_came():
    world = World(f"plugins: [{{type: utilization-filter, parameters: {PARAMETERS['utilization-filter']}}}]")
    for number in range(6):
        world.report(number, 50.0, 50.0, 0.99)
    error = world.simulate().outcome
    assert isinstance(error, AllBusyError)
    (run,) = error.scheduling.profiles.values()
    assert [(step.plugin, step.before, step.after) for step in run.filters] == [("utilization-filter", 6, 0)]
