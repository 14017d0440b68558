# SPDX-License-Identifier: Apache-2.0
"""The director alone: from headers and body to a routing, with plugins made for each test."""

import asyncio
import json
from collections import Counter

import pytest

from epp.config.describe import describe
from epp.framework import Candidates, Endpoint, Headers, Request, Screener
from epp.framework.errors import (
    AdmissionDeniedError,
    BodyMissingError,
    MalformedBodyError,
    ModelMissingError,
    PluginFailedError,
    PreconditionFailedError,
)
from epp.framework.refusals import NoEndpointsError, SaturatedError, ScreenedOutError
from epp.routing.director import PendingRequest, Routing, Seeds, Subset
from tests.support.waiting import until
from tests.unit.director.world import BODY, ENDPOINTS, POST, World


def test_request_is_routed_and_its_endpoint_is_credited():
    world = World()
    routing = world.route()
    (target,) = routing.result.targets
    assert routing.request.model == "m"
    assert routing.request.path == "/v1/completions"
    assert world.in_flight() == {target.name: 1}
    assert world.events.told == [("routed", target.name)]


def test_last_hook_adds_headers_that_it_declares():
    routing = World("{type: adds, parameters: {declared: [x-one]}}").route()
    assert routing.result.destination.headers == {"x-one": routing.result.targets[0].name}
    with pytest.raises(PluginFailedError, match=r"\['x-one'\], which are not in its `sets_headers`"):
        World("{type: adds, parameters: {declared: [x-two]}}").route()


def test_source_of_a_kv_cache_is_the_endpoint_that_computed_the_prompt_and_a_clients_own_is_removed():
    def sent_to(address: str) -> Routing:
        wanted = (("test-epp-endpoint-selection", address), ("x-kv-cache-source-host-port", "6.6.6.6:6"))
        return world.route(headers=Headers([*POST.fields(), *wanted]))

    world = World("{type: p2p-source-producer}, {type: header-based-testing-filter}")
    assert sent_to("10.0.0.1").result.destination.headers == {}
    second = sent_to("10.0.0.2")
    assert second.result.destination.headers == {"x-kv-cache-source-host-port": "10.0.0.1:8000"}
    assert second.control_names == ["x-kv-cache-source-host-port"]


def test_subset_narrows_the_candidates_unless_it_is_not_used():
    only_c = Subset.parse(["10.0.0.3"])
    assert World().route(subset=only_c).result.targets[0].name == "c"
    world = World(use_subset=False)
    assert {world.route(subset=only_c).result.targets[0].name for _ in range(20)} == set("abcd")


@pytest.mark.parametrize(
    ("body", "subset", "error", "told"),
    [
        (b"{", None, MalformedBodyError, " MalformedBodyError"),
        (b'{"prompt":"hello"}', None, ModelMissingError, " ModelMissingError"),
        (BODY, Subset.parse(["10.9.9.9"]), NoEndpointsError, "m NoEndpointsError"),
    ],
)
def test_refusal_is_recorded_once_with_the_model_and_nothing_is_credited(body, subset, error, told):
    world = World()
    with pytest.raises(error):
        world.route(body, subset=subset)
    assert world.events.told == [("refused", told)]
    assert world.in_flight() == {}


def test_request_that_an_admitter_refuses_gets_the_status_of_the_cause():
    with pytest.raises(AdmissionDeniedError, match="request cannot be admitted: full") as caught:
        World("{type: says-no}").route()
    assert caught.value.status == 429


def test_screeners_see_all_candidates_and_only_what_all_keep_is_left():
    world = World("{type: keeps, name: x, parameters: {names: [a, b]}}, {type: keeps, parameters: {names: [b, c]}}")
    assert {world.route().result.targets[0].name for _ in range(20)} == {"b"}
    assert [plugin.seen for plugin in world.assembly.pipeline.of(Screener)] == [4, 4]


def test_request_without_an_endpoint_that_all_screeners_keep_is_refused():
    world = World("{type: keeps, name: x, parameters: {names: [a]}}, {type: keeps, parameters: {names: [c]}}")
    with pytest.raises(ScreenedOutError):
        world.route()
    assert world.events.told == [("refused", "m ScreenedOutError")]


PREFIX = "{type: prefix-cache-scorer}"


def asking(value: str, *more: str) -> Headers:
    return Headers([*POST.fields(), *(("prefer", each) for each in (value, *more))])


@pytest.mark.parametrize(
    "preferences",
    [
        ("if-available",),
        ("If-Available",),
        ("return=minimal, if-available",),
        ('wait=5, if-available=1; q="2"',),
        ("respond-async", " if-available ;x=y"),
    ],
)
def test_request_for_a_cached_prompt_is_refused_until_its_endpoint_holds_it(preferences):
    world = World(PREFIX)
    for _ in range(2):  # a refused request leaves no trace in the index
        with pytest.raises(
            PreconditionFailedError, match="no model server holds the KV cache of this prompt"
        ) as caught:
            world.route(headers=asking(*preferences))
        assert caught.value.status == 412
    assert world.in_flight() == {}
    assert world.events.told == [("refused", "m PreconditionFailedError")] * 2
    (target,) = world.route().result.targets
    assert world.route(headers=asking(*preferences)).result.targets == (target,)
    with pytest.raises(PreconditionFailedError):
        world.route(b'{"model":"m","prompt":"another"}', headers=asking(*preferences))


def test_named_producer_of_matches_tells_too_what_is_cached():
    named = "{type: approx-prefix-cache-producer, name: mine}"
    world = World(f"{named}, {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: mine}}}}")
    world.route()
    assert isinstance(world.route(headers=asking("if-available")), Routing)


def test_gie_23_producer_whose_cost_grows_with_candidates_gets_those_that_filters_may_keep():
    labels = "type: by-label-selector, parameters: {matchLabels: {tier: gold}}"
    world = World(f"{{type: counts}}, {{type: counts-few}}, {{{labels}}}")
    tiers = ["gold"] * 5 + ["plain"] * 95
    world.store.replace(
        Endpoint(f"{tier}-{n}", f"10.0.0.{n}", 8000, labels={"tier": tier}) for n, tier in enumerate(tiers)
    )
    routing = world.route()
    assert routing.result.targets[0].name.startswith("gold-")
    for name, count in (("counts", 100), ("counts-few", 5)):
        plugin = world.plugin(name)
        assert (plugin.produced[-1], plugin.admitted[-1]) == (count, count)


def test_request_for_a_cached_prompt_is_refused_where_nothing_knows_of_caches():
    with pytest.raises(PreconditionFailedError):
        World("{type: queue-scorer}").route(headers=asking("if-available"))


@pytest.mark.parametrize("preferences", ["if-available-or-not", "respond-async", "x; if-available", ""])
def test_other_preferences_are_the_endpoints_business(preferences):
    assert isinstance(World(PREFIX).route(headers=asking(preferences)), Routing)


def post(path: str, method: str = "POST") -> Headers:
    return Headers([(":method", method), (":path", path)])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions?x=1", "/v1/messages/", "/v1/embeddings"])
def test_post_without_a_body_to_an_api_that_a_parser_reads_is_refused(path):
    with pytest.raises(BodyMissingError, match="the request has no body") as caught:
        World().route(b"", headers=post(path))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "headers", [post("/v1/models", "GET"), post("/v1/completions", "GET"), post("/reset_prefix_cache")]
)
def test_other_requests_without_a_body_go_to_any_endpoint(headers):
    assert isinstance(World().route(b"", headers=headers), Routing)


def test_post_of_whose_body_nothing_is_known_yet_goes_to_any_endpoint():
    world = World()
    assert isinstance(world.director.route(post("/v1/completions"), b"", None, incomplete=True), Routing)


def test_screeners_are_shown_in_the_graph_before_admission():
    graph = describe(World("{type: says-no}, {type: keeps, parameters: {names: [a]}}").assembly)
    assert list(graph.hooks) == ["screeners", "admission"]


@pytest.mark.parametrize("where", ["request_headers", "produce", "admit"])
def test_hook_that_breaks_before_scheduling_is_done_without_and_counted(where):
    world = World(f"{{type: breaks, parameters: {{where: {where}}}}}")
    assert isinstance(world.route(), Routing)
    assert world.events.told[0] == ("failed", f"breaks: broken {where}")


def test_broken_pre_request_hook_fails_the_request_and_nothing_stays_credited():
    world = World("{type: breaks, parameters: {where: pre_request}}")
    with pytest.raises(PluginFailedError, match="plugin 'breaks' failed: RuntimeError: broken pre_request"):
        world.route()
    assert [kind for kind, _ in world.events.told] == ["failed", "refused"]
    assert world.in_flight() == {}


@pytest.mark.parametrize("picker", ["random-picker", "weighted-random-picker"])
def test_requests_of_one_id_spread_over_the_endpoints(picker):
    world = World(f"{{type: {picker}}}")
    picked = Counter(world.route().result.targets[0].name for _ in range(80))
    assert set(picked) == set("abcd")
    assert max(picked.values()) < 40


def test_recorded_seed_gives_the_same_pick_again():
    world = World("{type: random-picker}")
    snapshot = world.store.snapshot()
    candidates = Candidates(snapshot, snapshot.slots)
    for _ in range(20):
        routing = world.route()
        again = Request("another id", routing.request.body, seed=routing.request.seed)
        assert world.assembly.pipeline.scheduler.schedule(again, candidates).targets == routing.result.targets


def test_seeds_of_two_processes_differ_and_those_of_one_secret_agree():
    assert Seeds(b"one").next() == Seeds(b"one").next()
    assert len({Seeds().next() for _ in range(10)}) == 10
    seeds = Seeds(b"one")
    assert len({seeds.next() for _ in range(1000)}) == 1000


async def test_held_request_is_scheduled_on_the_snapshot_of_its_release():
    world = World("{type: gate}")
    held = world.route()
    assert isinstance(held, PendingRequest)
    assert world.events.told == []
    settling = asyncio.create_task(held.settle())
    await asyncio.sleep(0)  # one turn of the loop, in which it begins to wait
    world.store.replace([Endpoint("late", "10.0.0.9", 8000)])
    world.hold.set_result(None)
    await settling
    assert held.routing().result.targets[0].name == "late"
    assert world.in_flight() == {"late": 1}


async def test_content_is_shown_to_producers_before_and_after_a_hold_and_then_dropped():
    world = World("{type: gate}, {type: reads}")
    held = world.route()
    world.hold.set_result(None)
    await held.settle()
    assert world.plugin("reads").seen[-2:] == [BODY, BODY]
    assert held.routing().request.content == b""


async def test_two_admitters_hold_one_after_the_other():
    world = World("{type: gate, name: first}, {type: gate, name: second}")
    first, second = world.plugin("first"), world.plugin("second")
    held = world.route()
    settling = asyncio.create_task(held.settle())
    first.held[-1].set_result(None)
    await until(lambda: second.held, "the second admitter holds it")
    assert not settling.done()
    second.held[-1].set_result(None)
    await settling
    assert isinstance(held.routing(), Routing)
    assert (len(first.held), len(second.held)) == (1, 1)


async def test_held_request_goes_to_an_endpoint_that_has_room_when_it_is_released():
    detector = "{type: concurrency-detector, name: one-each, parameters: {maxConcurrency: 1}}"
    profile = "schedulingProfiles: [{name: p, plugins: [{pluginRef: prefix-cache-scorer}]}]"  # without the detector
    flow = f"{profile}\nflowControl: {{saturationDetector: {{pluginRef: one-each}}}}\nfeatureGates: [flowControl"
    world = World(f"{{type: gate}}, {{type: prefix-cache-scorer}}, {detector}]\n{flow}")
    alike = json.dumps({"model": "m", "prompt": "hello " * 200}).encode()  # its first endpoint is the best for all
    settling = [asyncio.create_task(world.route(alike).settle()) for _ in ENDPOINTS]
    for release in world.plugin("gate").held:
        release.set_result(None)
    await asyncio.gather(*settling)
    assert world.in_flight() == {endpoint.name: 1 for endpoint in ENDPOINTS}


async def test_held_request_may_still_be_refused():
    world = World("{type: gate}")
    held = world.route()
    world.hold.set_exception(SaturatedError("too late"))
    await held.settle()
    with pytest.raises(AdmissionDeniedError, match="request cannot be admitted: too late"):
        held.routing()
    assert world.events.told == [("refused", "m AdmissionDeniedError")]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda hold: hold.set_exception(RuntimeError("queue lost")), "queue lost"),
        (lambda hold: hold.cancel(), "the awaitable that held the request was cancelled"),
    ],
    ids=["raises", "cancels"],
)
async def test_error_of_an_admitter_that_holds_is_counted_and_the_request_goes_on(end, error):
    world = World("{type: gate}")
    held = world.route()
    end(world.hold)
    await held.settle()
    assert isinstance(held.routing(), Routing)
    assert world.events.told[0] == ("failed", f"gate: {error}")


async def test_error_that_no_plugin_is_guarded_for_is_raised_where_the_outcome_is_taken():
    async def fail() -> Routing:
        raise ZeroDivisionError("a defect")

    held = PendingRequest(fail)
    await held.settle()
    with pytest.raises(ZeroDivisionError, match="a defect"):
        held.routing()


async def test_client_that_leaves_while_it_is_held_is_recorded_and_its_hold_cancelled():
    world = World("{type: gate}")
    settling = asyncio.create_task(world.route().settle())
    await asyncio.sleep(0)  # one turn of the loop, in which it begins to wait
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert world.hold.cancelled()
    assert world.events.told == [("refused", "m ClientGoneError")]


async def test_hold_of_a_client_that_leaves_before_it_is_awaited_is_cancelled_too():
    world = World("{type: gate}")
    world.route().abandon()
    assert world.hold.cancelled()
    assert world.events.told == [("refused", "m ClientGoneError")]


def test_outcome_of_a_held_request_is_not_there_before_it_settled():
    with pytest.raises(RuntimeError, match="was not awaited"):
        PendingRequest(lambda: asyncio.sleep(0)).routing()
