# SPDX-License-Identifier: Apache-2.0
"""Why a request went where it went, in a few words."""

import msgspec
import numpy as np
import pytest

from epp.framework import Destination, Endpoint, Headers, ProfileResult, Request, SchedulingResult
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost
from epp.framework.request import CACHED_TOKENS_PREDICTED, PREFIX_MATCH, PROMPT_TOKENS, PrefixMatch, PromptTokens
from epp.framework.result import FilterTrace, ScoreTrace
from epp.framework.testing import candidates, run_scheduling
from epp.plugins.selection_filters import AcceleratorFilter
from epp.routing.director import Decision, top_values
from tests.support.plugins import built

FOUR = candidates(waiting=[0, 0, 0, 0])


def scored(plugin: str, *scores: float, weight: float = 1.0) -> ScoreTrace:
    return ScoreTrace(plugin, weight, np.array(scores))


def result(
    *traces: ScoreTrace, picked: int = 0, filters: tuple[FilterTrace, ...] = (), name="default"
) -> ProfileResult:
    count = len(traces[0].scores) if traces else 1
    totals = sum((trace.weight * trace.scores for trace in traces), np.zeros(count))
    left = FOUR.keep(np.arange(4) < count)
    return ProfileResult(name, left, totals, np.array([picked]), filters, traces)


def decision(primary: ProfileResult, *others: ProfileResult | None, request: Request | None = None) -> Decision:
    profiles = {"other" if leg is None else leg.profile: leg for leg in (primary, *others)}
    return Decision(request or Request("r"), SchedulingResult(Destination(primary), profiles, {}))


def test_scores_that_set_the_endpoint_apart_are_named_strongest_first():
    same = scored("same", 1, 1, 1, 1, weight=9)
    weak = scored("weak", 0.5, 0.4, 0.4, 0.4)
    strong = scored("strong", 0.9, 0, 0, 0)
    middle = scored("middle", 0.9, 0.5, 0.5, 0.5)
    assert decision(result(same, weak, strong, middle)).why() == "default: strong 0.90, middle 0.90, best of 4"
    assert decision(result(scored("queue", 0.5, 1, 0, 0), picked=0)).why() == "default: queue 0.50, not the best of 4"
    avoided = scored("avoided", 0.0, 1, 1, 1, weight=-2)  # a negative weight counts the other way
    assert decision(result(scored("queue", 0.2, 0.1, 0.1, 0.1), avoided)).scores(1) == {"avoided": 0.0}


@pytest.mark.parametrize(
    ("traces", "filters", "why"),
    [
        ((scored("queue", 1, 1),), (), "default: equal scores of 2"),
        ((), (), "default: the only one there is"),
        ((), (FilterTrace("cheap", 4, 3), FilterTrace("close", 3, 1)), "default: the only one of 4 after close"),
        (
            (scored("queue", 1, 0),),
            (FilterTrace("cheap", 4, 2), FilterTrace("idle", 2, 2)),
            "default: queue 1.00, best of 2 of 4 after cheap",
        ),
    ],
)
def test_filters_that_dropped_candidates_are_a_reason(traces, filters, why):
    assert decision(result(*traces, filters=filters)).why() == why


def test_cached_share_is_that_of_the_endpoint_picked():
    request = Request("r")
    request.put(PREFIX_MATCH, PrefixMatch(np.array([0, 3, 0, 0], dtype=np.int32), 4, 64))
    found = decision(result(scored("prefix", 0, 0.75, 0, 0), picked=1), request=request)
    assert found.cached_share == 0.75
    assert found.why() == "default: prefix 0.75, best of 4; 75% cached"
    request.put(PROMPT_TOKENS, PromptTokens(9, no_ids="late"))
    assert found.why() == "default: prefix 0.75, best of 4; 75% cached; no token ids: late"
    request.put(PREFIX_MATCH, PrefixMatch(np.zeros(4, dtype=np.int32), 0, 64))  # a prompt of less than one block
    assert found.cached_share is None
    request.put(CACHED_TOKENS_PREDICTED, 3)  # by KV events
    assert found.cached_share == 1 / 3


def test_other_profiles_and_fallbacks_are_named():
    prefill = result(scored("queue", 0, 0, 1), picked=2, name="prefill")
    found = decision(result(scored("queue", 1, 0), name="decode"), prefill, None)
    assert found.why(Endpoint("spare", "10.0.0.9", 8000)) == (
        "decode: queue 1.00, best of 2; prefill e2; other none; fallback from e0"
    )


def test_reason_is_short_ascii_and_without_control_characters_whatever_names_are():
    nasty = "\x1b[31m\u202eümlaut\n" * 50
    found = decision(result(scored(nasty, 1, 0), filters=(FilterTrace(nasty, 4, 2),), name=nasty))
    why = found.why(Endpoint(nasty, "10.0.0.9", 8000))
    assert why.isascii()
    assert why.isprintable()
    assert len(why) <= 160


def test_top_values_of_many_candidates_are_found_best_first():
    pool = candidates(waiting=[0] * 1000)
    values = np.arange(1000) % 997 / 1000  # 996 is the largest, at 996 alone
    assert list(top_values(pool, values).items()) == [("e996", 0.996), ("e995", 0.995), ("e994", 0.994)]
    assert top_values(FOUR, np.array([0.5, 0.1, 0.9, 0.2]), most=9) == {"e2": 0.9, "e0": 0.5, "e3": 0.2, "e1": 0.1}


def test_rule_that_chose_the_model_is_named_and_an_objective_that_is_unknown_is_not():
    headers = Headers([("x-gateway-inference-objective", "made up")])
    request = Request("r", headers=headers, target_model="t", rewritten_by="canary")
    assert decision(result(), request=request).why() == (
        "default: the only one there is; model chosen by canary; unknown objective"
    )
    known = Request("r", headers=headers, objective="made up", priority=3)
    assert decision(result(), request=known).why() == "default: the only one there is"


def test_ome_12_reason_names_bound_policy_and_class_of_the_accelerator_that_they_chose():
    config = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: accelerator-filter, parameters: {minMemory: 40Gi, fallbackOnEmpty: false}}
- type: cheapest-scorer
schedulingProfiles:
- {name: default, plugins: [{pluginRef: accelerator-filter}, {pluginRef: cheapest-scorer}]}
"""
    tags = [
        AcceleratorTag(
            kind=AcceleratorKind.GPU, model=f"g{size}", count=1, memory_bytes=size * 2**30, cost=Cost(per_hour=price)
        )
        for size, price in ((16, 1.0), (80, 4.0), (40, 2.0))
    ]
    classed = [*tags[:2], msgspec.structs.replace(tags[2], classes=("mid-size", "any"))]
    for pool, chosen in ((tags, "g40"), (classed, "mid-size")):
        request = Request("r")
        found = run_scheduling(config, candidates(accelerators=pool), request)
        why = "default: cheapest-scorer 1.00, best of 2 of 3 after accelerator-filter"
        assert Decision(request, found).why() == f"{why}; on {chosen}"
        (trace,) = found.primary.filters
        assert (trace.before, trace.slots.tolist()) == (3, [1, 2])
    bound = built(AcceleratorFilter, {"minMemory": "40Gi"})
    assert bound.rejection(request, tags[0]) == "memory 16 GiB is below 40 GiB"
