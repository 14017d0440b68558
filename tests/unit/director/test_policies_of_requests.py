# SPDX-License-Identifier: Apache-2.0
"""What objectives and rewrites make of a request in the director."""

import asyncio
from collections import Counter

import pytest

from epp.framework import Headers, Request
from epp.framework.candidates import Subset
from epp.framework.errors import ModelMissingError
from epp.framework.flow_control import SaturationDetector
from epp.framework.refusals import SheddableDroppedError
from epp.routing.director import PoolPolicies, Rewrite, Routing
from tests.unit.director.world import BODY, ENDPOINTS
from tests.unit.director.world import World as DirectorWorld

CURRENT, DEPRECATED = "x-llm-d-inference-objective", "x-gateway-inference-objective"
OVERRIDE = "x-llm-d-model-name-rewrite"
PATH = "/v1/completions"
NAMELESS = b'{"prompt":"hello"}'


class Broken(SaturationDetector):
    plugin_type = "broken-detector"

    def fullness(self, candidates):
        raise RuntimeError("broken")


class World(DirectorWorld):
    """A director with policies; its endpoints have the addresses 10.0.0.1:8000 and so on."""

    def __init__(self, policies: PoolPolicies, plugins: str = "", rest: str = "", *, endpoints: int = 1) -> None:
        super().__init__(plugins, rest=rest, endpoints=ENDPOINTS[:endpoints], more=[Broken], policies=policies)

    def request(self, body: bytes = BODY, *, path: str = PATH, subset: Subset | None = None, **headers: str) -> Request:
        routing = self.route(body, Headers([(":path", path), *headers.items()]), subset)
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
    request = World(OBJECTIVES).request(**headers)
    assert (request.objective, request.priority) == expected


def test_objective_without_a_name_is_for_no_request():
    assert World(PoolPolicies({"": -1})).request().priority == 0


def test_other_policies_are_for_further_requests():
    world = World(OBJECTIVES)
    before = world.request(**{CURRENT: "chat"})
    world.director.use_policies(PoolPolicies({"chat": 8}))
    assert (before.priority, world.request(**{CURRENT: "chat"}).priority) == (7, 8)


def test_rule_for_the_model_replaces_it():
    world = World(PoolPolicies(exact={"m": to("m-v2")}))
    request = world.request()
    assert (request.body.model, request.model, request.rewritten_by) == ("m", "m-v2", "r")
    assert world.events.told[0] == ("rewritten by r", "m-v2")


def test_rule_counts_before_the_header_and_the_header_without_a_rule():
    world = World(PoolPolicies(exact={"m": to("m-v2")}))
    assert world.request(**{OVERRIDE: "by-header"}).model == "m-v2"
    other = world.request(BODY.replace(b'"m"', b'"other"'), **{OVERRIDE: "by-header"})
    assert (other.model, other.rewritten_by) == ("by-header", "")
    assert world.request(NAMELESS, **{OVERRIDE: "m"}).model == "m"  # a rule is for the model in the body


def test_generic_rule_gives_a_model_to_a_request_without_one():
    world = World(PoolPolicies(generic=to("any", generic=True)))
    assert world.request(NAMELESS).model == "any"
    with pytest.raises(ModelMissingError):
        World(PoolPolicies(exact={"m": to("any")})).request(NAMELESS)


def test_rule_without_targets_leaves_the_model_as_it_is():
    world = World(PoolPolicies(exact={"m": to()}))
    request = world.request()
    assert (request.model, request.rewrites_model, request.rewritten_by) == ("m", False, "")
    assert world.events.told[:-1] == []


def test_rule_for_the_same_model_changes_no_body_and_is_counted():
    world = World(PoolPolicies(exact={"m": to("m")}))
    assert not world.request().rewrites_model
    assert world.events.told[0] == ("rewritten by r", "m")


@pytest.mark.parametrize("parser", ["passthrough-parser", "sglanghttp-parser"])
def test_parser_of_an_api_without_models_rewrites_none(parser):
    parsers = f"requestHandler: {{parsers: [{{pluginRef: {parser}}}]}}"
    world = World(PoolPolicies(generic=to("any", generic=True)), f"{{type: {parser}}}", parsers)
    assert world.request(b'{"input_ids":[1,2]}', path="/generate").model == ""
    assert world.events.told[:-1] == []


def test_requests_are_shared_out_by_weight_and_alike_for_alike_seeds():
    policies = PoolPolicies(exact={"m": to("a", "b", weights=(1, 3))})
    first, again = World(policies), World(policies)
    models = [first.request().model for _ in range(1000)]
    assert models[:100] == [again.request().model for _ in range(100)]
    assert 680 < Counter(models)["b"] < 820  # 750 expected, with a standard deviation of 14


def test_choice_of_a_model_does_not_depend_on_other_random_choices_of_the_request():
    policies = PoolPolicies(exact={"m": to("a", "b")})
    request = World(policies).request()
    assert request.model == ("a" if request.uniform("model-rewrite") < 0.5 else "b")


def test_sheddable_request_is_refused_while_the_endpoints_of_its_subset_are_full():
    world = World(OBJECTIVES, endpoints=2)
    world.report(0, waiting=50)
    world.report(1, waiting=0)
    with pytest.raises(SheddableDroppedError):
        world.request(**{CURRENT: "batch"})  # (10 + 0) / 2
    assert world.request(**{CURRENT: "chat"}).priority == 7
    assert world.request(subset=Subset.parse(["10.0.0.2:8000"]), **{CURRENT: "batch"}).priority == -1
    assert [refusal.request.priority for refusal in world.events.refusals] == [-1]
    world.report(0, waiting=9)
    assert world.request(**{CURRENT: "batch"}).priority == -1


def test_detector_of_the_file_says_when_sheddable_requests_are_refused():
    plugins = "{type: concurrency-detector, name: busy, parameters: {maxConcurrency: 2}}, {type: queue-scorer}"
    profiles = "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]"
    world = World(OBJECTIVES, plugins, f"{profiles}\nflowControl: {{saturationDetector: {{pluginRef: busy}}}}")
    world.report(0, waiting=50)
    for _ in range(2):
        assert world.request(**{CURRENT: "batch"}).priority == -1
    with pytest.raises(SheddableDroppedError):
        world.request(**{CURRENT: "batch"})
    assert world.request(**{CURRENT: "chat"}).priority == 7


def test_thresholds_of_a_declared_utilization_detector_count_although_nothing_names_it():
    parameters = "{queueDepthThreshold: 20, metricsStalenessThreshold: 9s}"
    world = World(OBJECTIVES, f"{{type: utilization-detector, parameters: {parameters}}}")
    world.report(0, waiting=19)
    assert world.request(**{CURRENT: "batch"}).priority == -1
    world.report(0, waiting=20)
    with pytest.raises(SheddableDroppedError):
        world.request(**{CURRENT: "batch"})


def test_detector_that_fails_has_nothing_refused():
    rest = "flowControl: {saturationDetector: {pluginRef: broken-detector}}"
    world = World(OBJECTIVES, "{type: broken-detector}", rest)
    world.report(0, waiting=50)
    assert world.request(**{CURRENT: "batch"}).priority == -1


async def test_request_that_waited_is_not_shed_when_it_is_released():
    world = World(OBJECTIVES, "{type: gate}")
    held = world.route(headers=Headers([(":path", PATH), (CURRENT, "batch")]))
    settling = asyncio.create_task(held.settle())
    world.report(0, waiting=50)
    world.hold.set_result(None)
    await settling
    assert held.routing().request.priority == -1
