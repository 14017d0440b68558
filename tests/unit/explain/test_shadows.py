# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles: what they say, what they may take, and that nothing of them reaches a request."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from epp.config import Builder, InvalidConfigError, assemble, load_text
from epp.explain import shadows as shadows_module
from epp.explain.record import ShadowRun
from epp.explain.shadows import Shadows
from epp.framework import Candidates, Endpoint, Floats, Headers, ManualClock, Request, Scorer
from epp.framework.registry import Registry
from epp.framework.roles import ShadowLimits
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Observers, Routing, Runtime, Seeds
from tests.support.waiting import until

BODY = b'{"model":"m","prompt":"hello"}'
HERE = __name__
HELD: list[bytes] = []


class FirstScorer(Scorer):
    """Favours the endpoint of the lowest name."""

    plugin_type = "first"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        names = [endpoint.name for endpoint in candidates.endpoints]
        return np.array([name == min(names) for name in names], dtype=np.float64)


class LastScorer(FirstScorer):
    """Favours the endpoint of the highest name, by half."""

    plugin_type = "last"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        assert request.dry_run == candidates.snapshot.dry_run
        return 0.5 - 0.5 * super().score(request, candidates)


class Raising(FirstScorer):
    """Does so for dry runs."""

    plugin_type = "raising"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        if candidates.profile == "tryout":
            raise SystemExit(1)
        return super().score(request, candidates)


class Slow(FirstScorer):
    """Takes its time for shadows."""

    plugin_type = "slow"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        if candidates.profile == "tryout":
            time.sleep(0.01)
        return super().score(request, candidates)


class Greedy(FirstScorer):
    """Keeps memory."""

    plugin_type = "greedy"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        if candidates.profile == "tryout":
            HELD.append(b"x" * (80 * 2**20))
        return super().score(request, candidates)


def config(shadow: str, *, real: str = "FirstScorer") -> str:
    return f"""
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: shadow-profiles, parameters: {{profiles: [tryout]}}}}
- {{type: "{HERE}:{real}", name: real}}
- {{type: "{HERE}:{shadow}", name: shadow}}
- type: max-score-picker
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: real}}, {{pluginRef: max-score-picker}}]}}
- {{name: tryout, plugins: [{{pluginRef: shadow}}, {{pluginRef: max-score-picker}}]}}
"""


class Runs:
    """What came of the requests that shadows were to run for."""

    def __init__(self) -> None:
        self.expected: list[Request] = []
        self.told: list[tuple[Request, list[ShadowRun]]] = []

    def expect_shadows(self, request: Request) -> None:
        self.expected.append(request)

    def add_shadows(self, request: Request, runs: Sequence[ShadowRun]) -> None:
        self.expected.remove(request)
        self.told.append((request, list(runs)))


class World:
    """A director over three endpoints, with shadows."""

    def __init__(self, shadow: str = "LastScorer", *, most: int = 64, seconds: float = 1.0) -> None:
        self.clock = ManualClock(1000.0)
        self.store = Datastore(self.clock)
        self.store.replace([Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("abc", 1)])
        pipeline = assemble(load_text(config(shadow)), Builder(Registry(modules=(HERE,)), self.clock)).pipeline
        self.registry = CollectorRegistry()
        self.recorded = Runs()
        self.shadows = Shadows(self.registry, self.recorded)
        self.shadows.use(pipeline.shadows, ShadowLimits(1.0, most, seconds))
        observer = Observers(self.shadows)
        self.director = Director(Runtime(self.store, self.clock, observer), pipeline, seeds=Seeds(b"test"))
        self.director.is_closed = False

    def route(self) -> Routing:
        routing = self.director.route(Headers([(":path", "/v1/completions")]), BODY, None)
        routing.complete(Cause.NATURAL)
        return routing

    async def run_all(self) -> None:
        """Do what `run` does, without its rests."""
        while self.shadows._waiting:  # noqa: SLF001  nothing tells of the end
            await self.shadows._run_next()  # noqa: SLF001

    @property
    def runs(self) -> list[tuple[Request, list[ShadowRun]]]:
        return [(request, runs) for request, runs in self.recorded.told if runs]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"llm_d_epp_shadow_{name}", labels)


@pytest.fixture(autouse=True)
def no_rests(monkeypatch):
    monkeypatch.setattr(shadows_module, "SHARE", 1.0)
    yield
    HELD.clear()


async def test_gie_9_shadow_runs_after_the_request_is_routed_and_says_how_it_differs():
    world = World()
    routing = world.route()
    assert routing.served.name == "a"
    assert not world.runs
    await world.run_all()
    ((request, (run,)),) = world.runs
    assert request is routing.request
    assert (run.profile, run.agrees, run.score_gap, run.problem) == ("tryout", False, 0.5, "")
    assert run.endpoint in "bc"
    assert world.value("runs_total", profile="tryout", outcome="differs") == 1
    assert world.value("score_gap_sum", profile="tryout") == 0.5


async def test_gie_9_agreement_is_counted():
    world = World("FirstScorer")
    for _ in range(3):
        world.route()
    await world.run_all()
    assert all(run.agrees for _, (run,) in world.runs)
    assert world.value("runs_total", profile="tryout", outcome="agrees") == 3


async def test_task_runs_shadows_by_itself():
    world = World()
    task = asyncio.create_task(world.shadows.run())
    world.route()
    await until(lambda: world.runs, "the shadow has run")
    task.cancel()


@pytest.mark.parametrize("shadow", ["Raising", "Slow", "Greedy"])
async def test_gie_9_broken_shadow_changes_no_pick_and_no_book(shadow):
    world, alone = World(shadow, seconds=0.002), World("FirstScorer")
    picks = []
    for _ in range(8):
        picks.append((world.route().served.name, alone.route().served.name))
        await world.run_all()
    assert all(one == other for one, other in picks)
    snapshots = world.store.snapshot(), alone.store.snapshot()
    for name, values in snapshots[1].columns.items():
        np.testing.assert_array_equal(snapshots[0].columns[name], values)
    assert not any(run.endpoint for _, (run,) in world.runs if run.problem)


async def test_gie_9_shadow_that_is_slow_again_and_again_is_disabled():
    world = World("Slow", seconds=0.001)
    for _ in range(8):
        world.route()
        await world.run_all()
    assert world.value("runs_total", profile="tryout", outcome="timeout") == 5
    assert world.value("disabled", profile="tryout") == 1
    (problem,) = world.shadows.problems
    assert problem["profile"] == "tryout"
    assert "repeatedly took" in problem["problem"]
    assert len(world.runs) == 5


async def test_gie_9_shadow_that_takes_memory_is_disabled_at_once(monkeypatch):
    # Garbage of other tests that is freed during the run would hide what the run takes.
    monkeypatch.setattr(shadows_module, "resident_bytes", lambda: sum(map(len, HELD)))
    world = World("Greedy")
    world.route()
    world.route()
    await world.run_all()
    (problem,) = world.shadows.problems
    assert "MiB of memory" in problem["problem"]
    assert len(HELD) == 1
    assert world.value("skipped_total", reason="disabled") == 1
    assert (len(world.recorded.told), world.recorded.expected) == (2, [])


async def test_gie_9_requests_beyond_the_queue_or_of_an_earlier_configuration_have_no_shadows():
    world = World(most=3)
    for _ in range(5):
        world.route()
    assert world.value("queue_size") == 3
    assert world.value("skipped_total", reason="queue") == 2
    await world.run_all()
    assert len(world.recorded.told) == len(world.runs) == 3
    assert world.value("queue_size") == 0
    world = World()
    world.route()
    world.shadows.use({}, None)
    assert world.value("skipped_total", reason="reload") == 1
    assert not world.recorded.expected
    world.route()
    assert world.value("queue_size") == 0


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ("[tryot]", "no profile is named 'tryot'"),
        ("[default, tryout]", "one must decide"),
        ("[tryout, tryout]", "repeats 'tryout'"),
        ("[tryout], timeout: 1s", "up to 50ms"),
    ],
)
def test_mistakes_are_said(profiles, message):
    text = config("LastScorer").replace("[tryout]}", f"{profiles}}}", 1)
    with pytest.raises(InvalidConfigError, match=message):
        assemble(load_text(text), Builder(Registry(modules=(HERE,)), ManualClock()))
