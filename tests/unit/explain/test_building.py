# SPDX-License-Identifier: Apache-2.0
"""Records of requests that were routed or refused: filters with reasons, scores that add up, the pick."""

import math

import msgspec
import numpy as np
import pytest

from epp.admission.flow_control.settings import QUEUEING_OUTCOME, Outcome, QueueingOutcome
from epp.config import Builder, assemble
from epp.config.load import load_text
from epp.explain.building import record_of
from epp.explain.record import DecisionRecord, Prefix, Timings
from epp.framework import Candidates, Filter, FilterParameters, Headers, ManualClock, Mask, Request, Scorer
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost
from epp.framework.arrays import Floats
from epp.framework.clusters import CLUSTER, ClusterStatus
from epp.framework.errors import RequestError
from epp.framework.refusals import NoEndpointsError
from epp.framework.registry import Registry
from epp.framework.request import PROMPT_TOKENS, SESSION_ID, PromptTokens, RequestBody
from epp.framework.testing import candidates
from epp.routing.director import Subset

ZONES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: by-label, name: zone-a, parameters: {label: zone, validValues: [a]}}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: broken}
- {type: silly}
- {type: constant}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: zone-a}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer}
"""


class Broken(Filter[FilterParameters]):
    """Raises, where a filter filters."""

    plugin_type = "broken"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        raise RuntimeError("no GPU")


class Silly(Filter[FilterParameters]):
    """Drops the first candidate and cannot say why."""

    plugin_type = "silly"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return np.arange(len(candidates)) > 0

    def drop_reasons(self, request: Request, candidates: Candidates) -> tuple[str, ...]:
        raise RuntimeError("no idea")


class Constant(Scorer):
    """Says that all are worth nothing."""

    plugin_type = "constant"
    zero_means = "is worth nothing"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return np.zeros(len(candidates))


def recorded(config: str, pool: Candidates, request: Request | None = None, **options) -> DecisionRecord:
    registry = Registry()
    for cls in (Broken, Silly, Constant):
        registry.register(cls)
    scheduler = assemble(load_text(config, "config"), Builder(registry, ManualClock())).pipeline.scheduler
    request = request or Request("r1")
    try:
        outcome = scheduler.schedule(request, pool)
    except RequestError as error:
        outcome = error
    return record_of(request, outcome, scheduler.profiles, **{"kind": "routed", "id": "1", "at": 0.0, **options})


def zones(*names: str, **columns) -> Candidates:
    return candidates(labels=[{"zone": name} for name in names], **columns)


def test_tf_5_record_has_each_filter_with_those_dropped_and_those_kept():
    record = recorded(ZONES, zones("a", "b", "a", "b", waiting=[4, 0, 0, 0]))
    (run,) = record.profiles
    (step,) = run.filters
    assert (run.name, run.primary, run.considered) == ("default", True, 4)
    assert (step.plugin, step.before, step.after, step.kept) == ("zone-a", 4, 2, ("e0", "e2"))
    assert [drop.endpoint for drop in step.dropped] == ["e1", "e3"]
    assert all(drop.reason for drop in step.dropped)


def test_tf_5_contributions_add_up_to_the_total():
    record = recorded(ZONES, zones("a", "a", "b", waiting=[4, 0, 0], kv_usage=[0.25, 0.5, 0]))
    (run,) = record.profiles
    best, other = run.candidates
    assert [step.plugin for step in run.scorers] == ["queue-scorer", "kv-cache-utilization-scorer"]
    assert [step.weight for step in run.scorers] == [2, 1]
    # e1: an empty queue is 1, times 2; half of its KV cache is free: 2 + 0.5. e0: the longest queue is 0; 0 + 0.75.
    assert (best.endpoint, best.scores, best.contributions, best.total) == ("e1", (1, 0.5), (2, 0.5), 2.5)
    assert (other.endpoint, other.scores, other.contributions, other.total) == ("e0", (0, 0.75), (0, 0.75), 0.75)
    assert (best.rank, other.rank) == (0, 1)
    assert (other.waiting, other.kv_usage, other.running) == (4, 0.25, None)


def test_pick_has_its_fallbacks_address_hardware_and_price():
    gpu = AcceleratorTag(kind=AcceleratorKind.GPU, model="h100", classes=("fast",), count=2, cost=Cost(per_hour=3.0))
    record = recorded(ZONES, zones("a", "a", waiting=[0, 1], accelerators=[gpu, AcceleratorTag()]))
    pick = record.pick
    assert (pick.endpoint, pick.fallbacks) == ("e0", ("e1",))
    assert pick.addresses == ("10.0.0.1:8000", "10.0.0.2:8000")
    assert (pick.accelerator, pick.accelerator_model, pick.cost_per_hour) == ("fast", "h100", 6.0)
    assert record.profiles[0].candidates[0].cost_per_hour == 6.0
    assert record.why.startswith("default: ")


def test_ocm_17_candidates_of_other_clusters_have_the_round_trip_to_them():
    statuses = [ClusterStatus(cluster="east", local=True), ClusterStatus(cluster="west", latency=0.035)]
    record = recorded(ZONES, zones("a", "a", waiting=[0, 1], records={CLUSTER: statuses}))
    assert [each.network_seconds for each in record.profiles[0].candidates] == [0.0, 0.035]
    alone = recorded(ZONES, zones("a", waiting=[0], records={CLUSTER: statuses[:1]}))
    assert alone.profiles[0].candidates[0].network_seconds is None


def test_refused_request_has_the_filters_that_left_none():
    record = recorded(ZONES, zones("b", "c"), kind="refused")
    (run,) = record.profiles
    assert record.pick is None
    assert record.failure.status == 429
    assert (run.considered, run.filters[0].after, run.candidates) == (2, 0, ())
    assert run.failure == record.failure
    assert (record.seen.endpoints, record.seen.screened) == (2, 2)


def test_filters_before_one_that_fails_are_in_the_record():
    broken = "  - {pluginRef: broken}\n  - {pluginRef: queue-scorer"
    record = recorded(ZONES.replace("  - {pluginRef: queue-scorer", broken), zones("a", "b"), kind="refused")
    (run,) = record.profiles
    assert [(step.plugin, step.after) for step in run.filters] == [("zone-a", 1)]
    assert record.failure.detail == "plugin 'broken' failed"
    assert "no GPU" not in record.failure.message


def test_refusal_without_scheduling_has_what_was_asked():
    request = Request("r2", RequestBody(model="m"), path="/v1/completions", seed=255, size_bytes=9)
    record = record_of(request, NoEndpointsError(), {}, id="2", kind="refused", at=0.5)
    assert (record.profiles, record.seen, record.pick) == ((), None, None)
    assert (record.asked.model, record.asked.path, record.asked.seed) == ("m", "/v1/completions", "00000000000000ff")
    assert record.at == "1970-01-01T00:00:00.500Z"
    assert record.why == "no model server is available for this request: retry later"


def test_scorer_says_what_0_means_and_a_reason_that_cannot_be_had_is_left_out():
    config = ZONES.replace("pluginRef: queue-scorer", "pluginRef: constant")
    first, _ = recorded(config, zones("a", "b")).profiles[0].scorers
    assert (first.plugin, first.zero_means) == ("constant", "is worth nothing")
    (step,) = recorded(ZONES.replace("pluginRef: zone-a", "pluginRef: silly"), zones("a", "b")).profiles[0].filters
    assert [(drop.endpoint, drop.reason) for drop in step.dropped] == [("e0", "")]


def test_lists_are_bounded_and_say_how_many_more():
    pool = zones(*("a" if slot % 2 else "b" for slot in range(100)), waiting=list(range(100)))
    run = recorded(ZONES, pool).profiles[0]
    assert (len(run.filters[0].kept), run.filters[0].kept_more) == (32, 18)
    assert (len(run.filters[0].dropped), run.filters[0].dropped_more) == (32, 18)
    assert (len(run.candidates), run.candidates_more) == (32, 18)
    totals = [each.total for each in run.candidates]
    assert totals == sorted(totals, reverse=True)


def test_no_text_of_the_prompt_and_no_control_characters():
    request = Request(
        "r\n3",
        RequestBody(model="m\x1b[31m" * 99, prompt=b"a secret"),
        Headers([("x-llm-d-inference-objective", "o\n"), ("x-slo-ttft-ms", "250")]),
        subset=Subset.parse(f"10.1.0.{number}" for number in range(40)),
    )
    record = recorded(ZONES, zones("a", waiting=[math.nan]), request)
    text = msgspec.json.encode(record).decode()
    assert "secret" not in text
    assert "\\u001b" not in text
    assert len(record.asked.model) <= 128
    assert (record.asked.ttft_slo, record.asked.tpot_slo) == (0.25, None)
    assert (len(record.asked.subset), record.asked.subset_more) == (32, 8)
    assert record.seen.eligible == 0


PROMPT = b"a secret of 256 bytes".ljust(256, b".")


def prefix(prompt: bytes, key: bytes = b"k", *, tokens: PromptTokens | None = None, **body) -> Prefix:
    request = Request("r5", RequestBody(model="m", prompt=prompt, **body))
    request.put(SESSION_ID, "a session")
    if tokens is not None:
        request.put(PROMPT_TOKENS, tokens)
    return recorded(ZONES, zones("a"), request, prefix_key=key).prefix


def test_hashes_are_of_full_blocks_and_equal_for_equal_prefixes():
    one, longer, other = prefix(PROMPT * 2), prefix(PROMPT * 3 + b"part of a block"), prefix(b"x" + PROMPT * 2)
    assert (one.block_tokens, len(one.blocks), len(longer.blocks)) == (64, 2, 3)
    assert longer.blocks[:2] == one.blocks
    assert len(set(one.blocks + longer.blocks + other.blocks)) == 5
    assert all(0 <= block < 2**53 for block in one.blocks)


def test_hashes_differ_by_key_salt_and_session():
    one, foreign, salted = prefix(PROMPT), prefix(PROMPT, b"k2"), prefix(PROMPT, cache_salt="s")
    assert len({one.blocks, foreign.blocks, salted.blocks}) == 3
    assert one.session == salted.session != foreign.session
    assert "session" not in one.session
    assert recorded(ZONES, zones("a"), Request("r5", RequestBody(prompt=PROMPT))).prefix is None  # without a key


def test_hashes_are_of_the_tokens_if_they_are_known_and_bounded():
    tokens = PromptTokens(130, np.arange(130, dtype=np.uint32))
    assert len(prefix(b"", tokens=tokens).blocks) == 2  # of 64 tokens each
    assert len(prefix(PROMPT * 3000).blocks) == 2048


def test_time_in_a_queue_is_in_the_record():
    request = Request("r4")
    request.put(QUEUEING_OUTCOME, QueueingOutcome(Outcome.DISPATCHED, 0.25))
    record = recorded(ZONES, zones("a"), request, timings=Timings(scheduling=0.001))
    assert record.timings == Timings(queue=0.25, queue_outcome="Dispatched", scheduling=0.001)


@pytest.mark.parametrize("age", [0.0, 2.5])
def test_age_is_that_of_the_last_report(age: float):
    pool = zones("a", "a", metrics_at=[3.0, 5.0])
    pool.now = 5.0 + age
    seen = recorded(ZONES, pool).seen
    assert seen.age_seconds == age
