# SPDX-License-Identifier: Apache-2.0
"""What objectives and rewrites make of a request in the director."""

import asyncio
from collections import Counter

import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, ManualClock, Request
from epp.framework.candidates import Subset
from epp.framework.datalayer import Report
from epp.framework.errors import ModelMissingError
from epp.framework.flow_control import SaturationDetector
from epp.framework.refusals import SheddableDroppedError
from epp.framework.registry import Registry
from epp.framework.snapshot import KV_USAGE, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Director, DirectorObserver, PoolPolicies, Refusal, Rewrite, Routing, Runtime, Seeds

CURRENT, DEPRECATED = "x-llm-d-inference-objective", "x-gateway-inference-objective"
OVERRIDE = "x-llm-d-model-name-rewrite"
PATH = "/v1/completions"
NAMED, NAMELESS = b'{"model":"m","prompt":"hello"}', b'{"prompt":"hello"}'


class Seen(DirectorObserver):
    """Records which rewrite chose which model, and refusals."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.refusals: list[Refusal] = []

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        self.told.append((rewrite.name, request.model))


class Broken(SaturationDetector):
    plugin_type = "broken-detector"

    def fullness(self, candidates):
        raise RuntimeError("broken")


class World:
    """A director with policies; its endpoints have the addresses 10.0.0.1:8000 and so on."""

    def __init__(
        self,
        policies: PoolPolicies,
        plugins: str = "plugins: []",
        *,
        endpoints: tuple[str, ...] = ("a",),
        registry: Registry | None = None,
    ) -> None:
        clock = ManualClock()
        self.store = Datastore(clock)
        self.endpoints = {name: Endpoint(name, f"10.0.0.{n}", 8000) for n, name in enumerate(endpoints, 1)}
        self.store.replace(self.endpoints.values())
        text = f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n{plugins}"
        assembly = assemble(load_text(text), Builder(registry or Registry(modules=["tests.support.admitter"]), clock))
        self.plugins = assembly.instances.by_name
        self.seen = Seen()
        self.director = Director(Runtime(self.store, clock, self.seen), assembly.pipeline, seeds=Seeds(b"test"))
        self.director.use_policies(policies)

    def report(self, name: str, waiting: float) -> None:
        self.store.report(self.endpoints[name], Report({WAITING: waiting, KV_USAGE: 0.0}))

    def route(self, body: bytes = NAMED, *, path: str = PATH, subset: Subset | None = None, **headers: str) -> Request:
        routing = self.director.route(Headers([(":path", path), *headers.items()]), body, subset)
        assert isinstance(routing, Routing)
        return routing.request


def to(*models: str, name: str = "r", weights: tuple[int, ...] = (), generic: bool = False) -> Rewrite:
    return Rewrite(name, generic=generic, models=models, weights=weights or (1,) * len(models))


OBJECTIVES = PoolPolicies(priorities={"batch": -1, "chat": 7, "none": 0})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ("", 0)),
        ({CURRENT: "chat"}, ("chat", 7)),
        ({DEPRECATED: "batch"}, ("batch", -1)),
        ({DEPRECATED: "batch", CURRENT: "chat"}, ("chat", 7)),
        ({CURRENT: "none"}, ("none", 0)),
        ({CURRENT: "unheard-of"}, ("", 0)),
        ({CURRENT: "chat" * 10_000}, ("", 0)),
        ({CURRENT: ""}, ("", 0)),
    ],
)
def test_objective_of_the_header_gives_the_priority(headers, expected):
    request = World(OBJECTIVES).route(**headers)
    assert (request.objective, request.priority) == expected


def test_objective_without_a_name_is_for_no_request():
    assert World(PoolPolicies({"": -1})).route().priority == 0


def test_other_policies_are_for_further_requests():
    world = World(OBJECTIVES)
    before = world.route(**{CURRENT: "chat"})
    world.director.use_policies(PoolPolicies({"chat": 8}))
    assert (before.priority, world.route(**{CURRENT: "chat"}).priority) == (7, 8)


def test_rule_for_the_model_replaces_it():
    world = World(PoolPolicies(exact={"m": to("m-v2")}))
    request = world.route()
    assert (request.body.model, request.model, request.rewritten_by) == ("m", "m-v2", "r")
    assert world.seen.told == [("r", "m-v2")]


def test_rule_counts_before_the_header_and_the_header_without_a_rule():
    world = World(PoolPolicies(exact={"m": to("m-v2")}))
    assert world.route(**{OVERRIDE: "by-header"}).model == "m-v2"
    other = world.route(NAMED.replace(b'"m"', b'"other"'), **{OVERRIDE: "by-header"})
    assert (other.model, other.rewritten_by) == ("by-header", "")
    assert world.route(NAMELESS, **{OVERRIDE: "m"}).model == "m"  # a rule is for the model in the body


def test_generic_rule_gives_a_model_to_a_request_without_one():
    world = World(PoolPolicies(generic=to("any", generic=True)))
    assert world.route(NAMELESS).model == "any"
    with pytest.raises(ModelMissingError):
        World(PoolPolicies(exact={"m": to("any")})).route(NAMELESS)


def test_rule_without_targets_leaves_the_model_as_it_is():
    world = World(PoolPolicies(exact={"m": to()}))
    request = world.route()
    assert (request.model, request.rewrites_model, request.rewritten_by) == ("m", False, "")
    assert world.seen.told == []


def test_rule_for_the_same_model_changes_no_body_and_is_counted():
    world = World(PoolPolicies(exact={"m": to("m")}))
    assert not world.route().rewrites_model
    assert world.seen.told == [("r", "m")]


@pytest.mark.parametrize("parser", ["passthrough-parser", "sglanghttp-parser"])
def test_parser_of_an_api_without_models_rewrites_none(parser):
    config = f"plugins: [{{type: {parser}}}]\nrequestHandler: {{parsers: [{{pluginRef: {parser}}}]}}"
    world = World(PoolPolicies(generic=to("any", generic=True)), config)
    assert world.route(b'{"input_ids":[1,2]}', path="/generate").model == ""
    assert world.seen.told == []


def test_requests_are_shared_out_by_weight_and_alike_for_alike_seeds():
    policies = PoolPolicies(exact={"m": to("a", "b", weights=(1, 3))})
    first, again = World(policies), World(policies)
    models = [first.route().model for _ in range(4000)]
    assert models == [again.route().model for _ in range(4000)]
    assert 2850 < Counter(models)["b"] < 3150  # 3000 expected, with a standard deviation of 27


def test_choice_of_a_model_does_not_depend_on_other_random_choices_of_the_request():
    policies = PoolPolicies(exact={"m": to("a", "b")})
    request = World(policies).route()
    assert request.model == ("a" if request.uniform("model-rewrite") < 0.5 else "b")


def test_sheddable_request_is_refused_while_the_endpoints_of_its_subset_are_full():
    world = World(OBJECTIVES, endpoints=("a", "b"))
    world.report("a", waiting=50)
    world.report("b", waiting=0)
    with pytest.raises(SheddableDroppedError):
        world.route(**{CURRENT: "batch"})  # (10 + 0) / 2
    assert world.route(**{CURRENT: "chat"}).priority == 7
    assert world.route(subset=Subset.parse(["10.0.0.2:8000"]), **{CURRENT: "batch"}).priority == -1
    assert [refusal.request.priority for refusal in world.seen.refusals] == [-1]
    world.report("a", waiting=9)
    assert world.route(**{CURRENT: "batch"}).priority == -1


def test_detector_of_the_file_says_when_sheddable_requests_are_refused():
    text = """plugins: [{type: concurrency-detector, name: busy, parameters: {maxConcurrency: 2}}, {type: queue-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
flowControl: {saturationDetector: {pluginRef: busy}}"""
    world = World(OBJECTIVES, text)
    world.report("a", waiting=50)
    for _ in range(2):
        assert world.route(**{CURRENT: "batch"}).priority == -1
    with pytest.raises(SheddableDroppedError):
        world.route(**{CURRENT: "batch"})
    assert world.route(**{CURRENT: "chat"}).priority == 7


def test_thresholds_of_a_declared_utilization_detector_count_although_nothing_names_it():
    parameters = "{queueDepthThreshold: 20, metricsStalenessThreshold: 9s}"
    world = World(OBJECTIVES, f"plugins: [{{type: utilization-detector, parameters: {parameters}}}]")
    world.report("a", waiting=19)
    assert world.route(**{CURRENT: "batch"}).priority == -1
    world.report("a", waiting=20)
    with pytest.raises(SheddableDroppedError):
        world.route(**{CURRENT: "batch"})


def test_detector_that_fails_has_nothing_refused():
    registry = Registry()
    registry.register(Broken)
    text = "plugins: [{type: broken-detector}]\nflowControl: {saturationDetector: {pluginRef: broken-detector}}"
    world = World(OBJECTIVES, text, registry=registry)
    world.report("a", waiting=50)
    assert world.route(**{CURRENT: "batch"}).priority == -1


async def test_request_that_waited_is_not_shed_when_it_is_released():
    world = World(OBJECTIVES, "plugins: [{type: 'tests.support.admitter:Gate', name: gate}]")
    held = world.director.route(Headers([(":path", PATH), (CURRENT, "batch")]), NAMED, None)
    settling = asyncio.create_task(held.settle())
    world.report("a", waiting=50)
    world.plugins["gate"].held[-1].set_result(None)
    await settling
    assert held.routing().request.priority == -1
