# SPDX-License-Identifier: Apache-2.0
"""The pool on the admin port: requests that are tried, endpoints, hardware, ranking and configuration."""

import asyncio
from collections import Counter
from contextlib import ExitStack

import msgspec
import pytest

from epp.admin.answers import (
    Counts,
    EndpointCounts,
    HeldRequests,
    PickerView,
    endpoint_counts,
    held_requests,
)
from epp.admin.simulate import EndpointChange, made_up
from epp.app.operators import admin_routes, on_trial
from epp.config import Builder, ConfigState, assemble, load_text
from epp.explain.record import DecisionRecord
from epp.framework import Endpoint, Headers, ManualClock
from epp.framework.accelerators.tag import AcceleratorTag, Cost, Device
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, KV_USAGE, RUNNING, TOPOLOGY, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, PoolPolicies, Runtime, Seeds
from tests.support.admin_client import asked, loop_calls, opened

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: topology-extractor}
- {type: by-label-selector, parameters: {matchLabels: {tier: gpu}, fallbackOnEmpty: false}}
- {type: tenant-quotas, parameters: {quotas: [{tenant: gold, total: {concurrentRequests: 5}}]}}
"""
OTHER = CONFIG.replace("queue-scorer", "kv-cache-utilization-scorer")
ZONE = "topology.kubernetes.io/zone"
SIMULATE = "/api/simulate-schedule"
BODY = {"model": "m", "prompt": "hello"}


class House:
    """A director over three endpoints on an event loop of its own, and an admin port with all that shows the pool."""

    def __init__(self, stack: ExitStack) -> None:
        self.clock = ManualClock()
        self.registry = Registry()
        self.assembly = assemble(load_text(CONFIG, "c.yaml"), Builder(self.registry, self.clock))
        self.store = Datastore(self.clock)
        self.endpoints = [
            Endpoint(f"e{i}", f"10.0.0.{i}", 8000, labels={"tier": "gpu", ZONE: "z"}, cluster="ab"[i % 2])
            for i in range(3)
        ]
        self.store.replace(self.endpoints)
        for i, endpoint in enumerate(self.endpoints):
            self.store.report(endpoint, Report({WAITING: float(i), RUNNING: 1.0, KV_USAGE: 0.9 - 0.3 * i}))
            tag = AcceleratorTag(
                model="a100", classes=("a100",), count=1, node="n1", cost=Cost(per_hour=2.5),
                devices=(Device(id=f"GPU-{i}/0", node="n1", parent_id="GPU-9"),),
            )  # fmt: skip
            self.store.tag(endpoint, Report({}, {ACCELERATOR: tag.located()}))
        self.director = Director(Runtime(self.store, self.clock), self.assembly.pipeline, seeds=Seeds(b"test"))
        self.director.use_policies(PoolPolicies({"batch": -1}))
        self.elsewhere: list[HeldRequests | None] = []
        """What other processes hold."""
        self.counted_elsewhere: list[Counts] = []
        """Counts of other processes."""
        self.loop = stack.enter_context(loop_calls())
        self.built = 0
        picker = PickerView(
            loop=self.loop, pool="mine", director=self.director, snapshot=self.store.snapshot, clock=self.clock,
            assembly=lambda: self.assembly, config=lambda: ConfigState(generation=7), states=tuple,
            counts=self.counts,
            source_of=lambda identity: "remote" if identity == "default/e1" else "", held=self.held, tenants=tuple,
            share_quota=lambda _tenant, _quota: None, build=self.build, complete=self.complete,
        )  # fmt: skip
        self.port = stack.enter_context(opened(admin_routes(picker, None)))

    async def counts(self) -> Counts:
        own = endpoint_counts(self.store.snapshot(), {})
        return EndpointCounts().with_others(own, dict(enumerate(self.counted_elsewhere)))

    async def held(self) -> HeldRequests:
        return held_requests(self.director).with_others(self.elsewhere)

    async def complete(self) -> None:
        """Do nothing: all that plugins read is there."""

    def build(self, text: str):
        self.built += 1
        builder = Builder(self.registry, self.clock, previous=self.assembly.instances.by_name)
        return on_trial(text, builder, self.assembly)

    def on_loop(self, work):
        return asyncio.run(self.loop.call(work))

    def route(self, *headers: tuple[str, str]):
        fields = Headers([(":path", "/v1/completions"), *headers])
        return self.on_loop(lambda: self.director.route(fields, msgspec.json.encode(BODY), None))

    def simulate(self, expected: int = 200, **ask: object) -> dict:
        answer = asked(self.port, "POST", SIMULATE, {"body": BODY, **ask})
        assert answer.status == expected, answer.body
        return answer.body

    def shown(self, path: str, expected: int = 200) -> dict:
        answer = asked(self.port, path=path)
        assert answer.status == expected, answer.body
        return answer.body


@pytest.fixture(scope="module")
def house():
    with ExitStack() as stack:
        yield House(stack)


def test_tf_6_simulation_answers_with_the_whole_record(house):
    found = house.simulate()
    record = msgspec.convert(found, DecisionRecord)
    assert (record.kind, record.pick.endpoint, record.config_generation) == ("simulated", "e0", 7)
    assert (record.asked.model, record.asked.path) == ("m", "/v1/completions")
    (run,) = record.profiles
    assert [step.plugin for step in run.filters] == ["by-label-selector"]
    assert [step.plugin for step in run.scorers] == ["queue-scorer"]
    assert [each.endpoint for each in run.candidates] == ["e0", "e1", "e2"]
    assert record.seen.eligible == record.seen.screened == 3
    assert "error" not in found


def test_tf_6_nothing_is_in_flight_or_charged_afterwards(house):
    before = house.on_loop(lambda: house.store.ledger.sequence)
    for _ in range(3):
        house.simulate(headers={"x-gateway-inference-fairness-id": "gold"})
    assert house.on_loop(lambda: house.store.ledger.sequence) == before
    assert house.on_loop(lambda: house.store.snapshot().column(IN_FLIGHT).sum()) == 0
    assert house.on_loop(lambda: list(house.director.quotas.reservations())) == []
    assert house.on_loop(lambda: len(house.director.reservations)) == 0


def test_gie_17_seed_of_a_record_gives_the_same_draws(house):
    first = house.simulate(seed="00000000000000ff")
    assert first["asked"]["seed"] == "00000000000000ff"
    assert house.simulate(seed="ff")["pick"] == first["pick"]
    assert house.simulate()["asked"]["seed"] != house.simulate()["asked"]["seed"]


def test_tf_6_subset_objective_headers_and_path_are_those_of_a_client(house):
    found = house.simulate(
        candidateSubset=["10.0.0.2:8000"],
        objective="batch",
        path="/v1/chat/completions",
        body={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        headers={"x-request-id": "mine", "x-gateway-inference-fairness-id": ["f", "g"]},
    )
    assert found["pick"]["endpoint"] == "e2"
    assert found["requestId"] == "mine"
    asked_for = found["asked"]
    assert (asked_for["objective"], asked_for["priority"], asked_for["fairnessId"]) == ("batch", -1, "f")
    assert asked_for["subset"] == ["10.0.0.2:8000"]


def test_tf_6_made_up_endpoints_count_for_one_request(house):
    busy = {"waiting": 50, "kvUsage": 0.99}
    found = house.simulate(endpoints={"e0": busy, "default/e1": busy, "10.0.0.2:8000": {"labels": {"tier": None}}})
    (step,) = found["profiles"][0]["filters"]
    assert [drop["endpoint"] for drop in step["dropped"]] == ["e2"]
    assert house.simulate(endpoints={"e0": busy})["pick"]["endpoint"] == "e1"
    assert house.simulate(endpoints={"e0": {"available": False}})["seen"]["available"] == 2
    assert house.simulate(endpoints={"e0": {"waiting": None}})["profiles"][0]["candidates"][0].get("waiting") != 0.0
    assert house.simulate()["pick"]["endpoint"] == "e0"


def test_made_up_labels_are_read_by_taggers(house):
    changes = {"e0": msgspec.convert({"labels": {ZONE: "other"}}, EndpointChange)}
    tried = made_up(house.on_loop(house.store.snapshot), changes, house.assembly.taggers, now=0.0)
    assert tried.records(TOPOLOGY).values[0].zone == "other"
    assert tried.endpoints.values[0].labels == {"tier": "gpu", ZONE: "other"}
    assert house.store.latest.endpoints.values[0].labels[ZONE] == "z"


def test_tf_6_another_configuration_decides_and_is_built_once(house):
    before = house.built
    for config in (OTHER, OTHER):
        found = house.simulate(config=config)
        assert [step["plugin"] for step in found["profiles"][0]["scorers"]] == ["kv-cache-utilization-scorer"]
        assert found["pick"]["endpoint"] == "e2"
    assert house.built == before + 1
    assert house.simulate()["pick"]["endpoint"] == "e0"


def test_configuration_may_be_a_document_and_says_what_is_not_in_effect(house):
    plugins = [{"type": "random-picker"}, {"type": "accelerator-data-source"}]
    document = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": plugins}
    warnings = " ".join(house.simulate(config=document)["warnings"])
    assert "accelerator-data-source: endpoints are tagged by the configuration in effect, not by this one" in warnings


def test_tf_6_unroutable_request_is_answered_with_its_error(house):
    found = house.simulate(candidateSubset=["10.9.9.9"])
    assert (found["error"]["type"], found["error"]["status"]) == ("NoEndpoints", 503)
    assert found["failure"]["message"] == found["error"]["message"]
    found = house.simulate(endpoints={f"e{i}": {"labels": {"tier": "cpu"}} for i in range(3)})
    assert found["error"]["type"] == "UnmetConstraint"
    assert [step["after"] for step in found["profiles"][0]["filters"]] == [0]


@pytest.mark.parametrize(
    ("body", "kind"), [("{", "MalformedBody"), ({"prompt": "x"}, "ModelMissing"), (None, "BodyMissing")]
)
def test_tf_6_body_that_cannot_be_read_is_an_error_of_the_request(house, body, kind):
    assert house.simulate(body=body)["error"]["type"] == kind


@pytest.mark.parametrize(
    ("ask", "status", "message"),
    [
        ({"bdy": 1}, 400, "bdy: unknown key; did you mean 'body'?"),
        ({"seed": "xyz"}, 400, "seed is 'xyz': write up to 16 hexadecimal digits"),
        ({"pool": "other"}, 404, "there is no pool 'other' here: leave it out, or write 'mine'"),
        ({"endpoints": {"e9": {}}}, 400, "endpoints: there is no endpoint 'e9'"),
        ({"endpoints": {"e1": {"kvUsage": 2}}}, 400, "endpoints.e1.kvUsage"),
        ({"headers": {":path": "/"}}, 400, "headers: ':path' is not a header name"),
        ({"config": "kind: x"}, 400, "config: contains no EndpointPickerConfig"),
        ({"victims": ["nobody"]}, 400, "victims: request 'nobody' is not in flight"),
        ({"config": OTHER + "- {type: no-such-thing}"}, 400, "no-such-thing"),
    ],
)
def test_tf_6_tf_22_bad_input_is_refused_with_place_and_remedy(house, ask, status, message):
    assert message in house.simulate(status, **ask)["error"]["message"]


def test_configuration_that_is_tried_reads_no_other_files_than_the_one_in_effect(house, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("top: secret\n")
    config = OTHER + f"- {{type: tenants, parameters: {{apiKeyFile: {secret}}}}}\n"
    message = house.simulate(400, config=config)["error"]["message"]
    assert "only files of the configuration in effect may be named here" in message
    assert "top" not in message


def test_yaml_is_read_like_json(house):
    text = b"path: /v1/completions\nbody: {model: m, prompt: hello}\ncandidateSubset: [10.0.0.1]\n"
    answer = asked(house.port, "POST", SIMULATE, text, Content_Type="application/yaml")
    assert answer.body["pick"]["endpoint"] == "e1"
    broken = asked(house.port, "POST", SIMULATE, b"a: 1\nb: 1: 2", Content_Type="application/yaml")
    assert broken.status == 400
    message = broken.body["error"]["message"]
    assert message.startswith("the body cannot be read: line 2: neither YAML nor JSON: a colon is not expected here")
    assert asked(house.port, "POST", SIMULATE, b"- a", Content_Type="text/yaml").status == 400
    for text in (b'body: "\\uD800"', b'body: {a: "\\uD800"}', b'config: {a: "\\uD800"}', b'config: "\\uD800"'):
        assert asked(house.port, "POST", SIMULATE, text, Content_Type="text/yaml").status == 400
    assert asked(house.port, "POST", SIMULATE, b"{}", Content_Type="text/plain").status == 415


def test_long_prompt_is_taken_and_one_beyond_the_limit_of_the_route_is_not(house):
    assert house.simulate(body={"model": "m", "prompt": list(range(100_000))})["pick"]["endpoint"] == "e0"
    found = house.simulate(body={"model": "m", "prompt": "x" * 900_000})
    assert found["asked"]["sizeBytes"] > 900_000
    answer = asked(house.port, "POST", SIMULATE, {"body": "x" * 1_100_000})
    assert (answer.status, answer.error) == (413, "PayloadTooLarge")
    assert "1024 KiB" in answer.body["error"]["message"]


def test_endpoints_are_shown_with_load_and_hardware(house):
    found = house.shown("/api/endpoints?limit=2")
    assert (found["pool"], found["total"], found["available"]) == ("mine", 3, 3)
    assert [row["name"] for row in found["endpoints"]] == ["e0", "e1"]
    row = found["endpoints"][1]
    assert (row["load"]["waiting"], row["load"]["kvUsage"], row["available"]) == (1.0, 0.6, True)
    assert (row["accelerator"]["class"], row["accelerator"]["costPerHour"]) == ("a100", 2.5)
    assert [row["source"] for row in found["endpoints"]] == [None, "remote"]
    assert [row["name"] for row in house.shown("/api/endpoints?offset=2")["endpoints"]] == ["e2"]
    only = house.shown("/api/endpoints?filter=E1")
    assert ([row["name"] for row in only["endpoints"]], only["matching"], only["total"]) == (["e1"], 1, 3)
    assert house.shown("/api/endpoints?filter=nothing")["endpoints"] == []
    assert house.shown(f"/api/endpoints?filter={'x' * 101}", 400)["error"]["message"].startswith("filter has 101")
    for name in ("e1", "default/e1", "10.0.0.1:8000"):
        assert house.shown(f"/api/endpoints/{name}")["id"] == "default/e1"
    assert house.shown("/api/endpoints/nobody", 404)["error"]["type"] == "NotFound"
    assert house.shown("/api/endpoints?limit=0", 400)["error"]["message"].startswith("limit is '0'")


def test_endpoints_are_shown_with_the_picks_and_ended_requests_of_all_processes(house):
    house.counted_elsewhere = [
        {"default/e1": Counter(picks=3, served=2.0, failed=1.0)},
        {"default/e1": Counter(picks=1, served=1.0), "default/gone": Counter(picks=9)},
    ]
    try:
        shown = {each["name"]: each for each in house.shown("/api/endpoints")["endpoints"]}
    finally:
        house.counted_elsewhere = []
    one = shown["e1"]
    assert (one["picks"], one["load"]["served"], one["load"]["failed"]) == (4, 3, 1)
    assert (shown["e2"]["picks"], shown["e2"]["load"]["failed"]) == (0, 0)


def test_tf_22_simulation_takes_named_requests_as_ended(house):
    gold = {"x-gateway-inference-fairness-id": "gold"}
    routings = [house.route(*gold.items(), ("x-request-id", f"victim-{i}")) for i in range(5)]
    try:
        full = house.simulate(headers=gold)
        assert full["error"]["reason"] == "rejected-quota"  # five requests are the limit
        free = house.simulate(headers=gold, victims=["victim-3"])
        assert "error" not in free
        (named,) = free["victims"]
        assert (named["requestId"], named["tenant"], named["hasLowerPriority"]) == ("victim-3", "gold", False)
        (endpoint,) = named["endpoints"]
        runs = [house.simulate(victims=victims)["profiles"][0] for victims in ([], ["victim-3"])]
        before, after = ({each["endpoint"]: each["inFlight"] for each in run["candidates"]} for run in runs)
        changes = {f"default/{name}": after[name] - before[name] for name in before if after[name] != before[name]}
        assert changes == {endpoint: -1}
        assert house.simulate(headers=gold)["error"]["reason"] == "rejected-quota"  # nothing ended
    finally:
        for routing in routings:
            house.on_loop(lambda one=routing: one.complete(Cause.NATURAL))


def test_tf_7_allocation_has_tags_reservations_and_a_map_of_devices(house):
    routings = [house.route(("x-gateway-inference-fairness-id", "gold")), house.route()]
    try:
        found = house.shown("/api/allocation")
        assert set(found["allocation"]) == {"default/e0", "default/e1", "default/e2"}
        held = [row["reservations"] for row in found["allocation"].values()]
        assert sum(row["inFlight"] for row in held) == 2
        assert sorted(tenant for row in held for tenant in row["assumed"]) == ["default-flow", "gold"]
        assert [row["byTenant"] for row in held if row["byTenant"]] == [{"gold": 1}]
        assert found["gpuToWorkerMap"]["GPU-1/0"] == ["default/e1"]
        assert found["gpuToWorkerMap"]["GPU-9"] == ["default/e0", "default/e1", "default/e2"]
        assert found["gpuStore"]["GPU-0/0"]["parent"] == "GPU-9"
        assert found["nodeWorkerStore"] == {"n1": ["default/e0", "default/e1", "default/e2"]}
        assert found["unanswered"] == 2
    finally:
        for routing in routings:
            house.on_loop(lambda one=routing: one.complete(Cause.NATURAL))
    assert house.shown("/api/allocation")["unanswered"] == 0


def test_allocation_has_the_requests_of_all_processes(house):
    routing = house.route(("x-gateway-inference-fairness-id", "gold"))
    target = routing.result.targets[0].id
    house.elsewhere = [
        HeldRequests({target: Counter(gold=2, free=1)}, {target: Counter(gold=2)}, 3),
        HeldRequests({"default/left": Counter(free=1)}, {}, 1),
        None,
    ]
    try:
        found = house.shown("/api/allocation")
    finally:
        house.elsewhere = []
        house.on_loop(lambda: routing.complete(Cause.NATURAL))
    held = found["allocation"][target]["reservations"]
    assert (held["assumed"], held["byTenant"]) == ({"gold": 3, "free": 1}, {"gold": 3})
    assert (found["unanswered"], found["silentWorkers"]) == (5, 1)


def test_ocm_11_placement_is_a_funnel_with_the_keys_of_the_debugger(house):
    found = house.shown("/api/placement")
    assert set(found) == {"placement", "filteredPipelineResults", "prioritizeResults", "aggregatedScores", "picked"}
    (step,) = found["filteredPipelineResults"]
    assert (step["name"], step["filteredClusters"], step["after"]) == ("by-label-selector", ["a", "b"], 3)
    (scorer,) = found["prioritizeResults"]
    assert (scorer["name"], scorer["weight"], scorer["scores"]) == ("queue-scorer", 1.0, {"a": 1.0, "b": 0.5})
    assert scorer["endpointScores"] == {"e0": 1.0, "e1": 0.5, "e2": 0.0}
    assert [(each["clusterName"], each["score"]) for each in found["aggregatedScores"]] == [("a", 1.0), ("b", 0.5)]
    assert found["aggregatedScores"][0]["endpoints"] == {"e0": 1.0, "e2": 0.0}
    assert found["picked"] == ["e0"]
    assert house.shown("/api/placement?profile=x", 404)["error"]["type"] == "NotFound"
    assert house.shown("/api/placement?model=m")["picked"] == ["e0"]
    assert house.shown("/api/placement?objective=batch")["picked"] == ["e0"]


def test_configuration_in_effect_is_shown_with_its_defaults(house):
    found = house.shown("/api/config")
    assert (found["generation"], found["origin"], found["refused"]) == (7, "c.yaml", None)
    assert found["text"] == CONFIG
    assert [each["name"] for each in found["graph"]["profiles"]] == ["default"]
