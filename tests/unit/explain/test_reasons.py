# SPDX-License-Identifier: Apache-2.0
"""What filters say of the endpoints that they drop, and scorers of those that get 0."""

import msgspec
import numpy as np
import pytest

from epp.framework import Candidates, Filter, Headers, ManualClock, Request, Scorer
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.plugin import Plugin
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH, PrefixMatch
from epp.framework.snapshot import NODE_LABELS
from epp.framework.testing import candidates, endpoint_rates

OWN: dict[str, type[Plugin]] = Registry().load_all()[0]
SCORERS = {name: cls for name, cls in OWN.items() if issubclass(cls, Scorer)}
FILTERS = {name: cls for name, cls in OWN.items() if issubclass(cls, Filter)}


def gpu(**fields: object) -> AcceleratorTag:
    return AcceleratorTag(kind=AcceleratorKind.GPU, count=1, **fields)


def dropped_by(name: str, parameters: dict, pool: Candidates, request: Request) -> list[tuple[str, str]]:
    """Return the endpoints that a filter drops, each with the reason."""
    clock = ManualClock(100.0)
    plugin = Registry().build(name, parameters, name=name, clock=clock)
    dropped = pool.keep(~np.asarray(plugin.filter(request, pool)))
    reasons = [reason or plugin.drop_means for reason in plugin.why_dropped(request, dropped)]
    return list(zip([endpoint.name for endpoint in dropped.endpoints], reasons, strict=True))


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_says_what_0_means(name: str):
    text = SCORERS[name].zero_means
    assert text
    assert text.isascii()
    assert not text.endswith(".")
    assert len(text) <= 100


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_says_why_it_drops_endpoints(name: str):
    cls = FILTERS[name]
    overridden = cls.why_dropped is not Filter.why_dropped or cls.drop_reasons is not Filter.drop_reasons
    assert overridden or cls.drop_means
    assert not cls.drop_means.endswith(".")


LABELS = candidates(labels=[{"zone": "a"}, {"zone": "b"}, {}])
LOAD = candidates(waiting=[0, 9], running=[1, 1], kv_usage=[0.1, 0.95], metrics_at=[100, 100], in_flight=[0, 7])
STALE = candidates(waiting=[0, 0], kv_usage=[0, 0], metrics_at=[100, 90])
PRICED = candidates(
    accelerators=[gpu(cost=Cost(per_hour=1.0)), gpu(cost=Cost(per_hour=4.0)), gpu()], waiting=[0] * 3, kv_usage=[0] * 3
)
NODES = candidates(records={NODE_LABELS: [{"gpu": "h100"}, {"gpu": "t4"}, {}, {"metadata.name": "n"}]})
ON_NODES = candidates(accelerators=[gpu(node="a"), gpu(node="b"), gpu(node="b")], in_flight=[1, 3, 4])
OTHER_ZONE = "its label zone is 'b'; has no label zone"
IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
ATTRIBUTE = {"attribute": "waiting", "algorithm": {"threshold": {"operator": "LessThanOrEqual", "value": 5}}}
KNOWN = {**ATTRIBUTE, "onMissing": "Fail"}
QUEUE = {"conditions": [{"metric": "waiting-queue", "maxValue": 5}]}
H100 = {"nodeSelector": {"gpu": "h100"}}
LENGTH = {"label": "length", "enableFiltering": True}


@pytest.mark.parametrize(
    ("name", "parameters", "pool", "reasons"),
    [
        ("by-label", {"label": "zone", "validValues": ["a"]}, LABELS, OTHER_ZONE),
        ("label-selector-filter", IN_ZONE, LABELS, OTHER_ZONE),
        ("prefill-filter", {}, candidates(labels=[{"llm-d.ai/role": "decode"}]), "its label llm-d.ai/role is 'decode'"),
        ("endpoint-attribute-filter", ATTRIBUTE, LOAD, "its waiting is 9, not LessThanOrEqual 5"),
        ("endpoint-attribute-filter", KNOWN, candidates(waiting=[0, np.nan]), "its waiting is not known"),
        ("utilization-filter", QUEUE, LOAD, "its waiting-queue is 9, more than 5"),
        ("utilization-detector", {"kvCacheUtilThreshold": 1.0}, LOAD, "9 requests wait there"),
        ("utilization-detector", {}, LOAD, "its KV cache is full to 95%"),
        ("utilization-detector", {}, STALE, "its metrics were too old"),
        ("concurrency-detector", {"maxConcurrency": 5}, LOAD, "7 requests are in flight there"),
        (
            *("node-affinity-filter", H100, NODES),
            "the label gpu of its node is 't4'; its node is not known; its node has no gpu",
        ),
        (
            *(
                "accelerator-filter",
                {"models": ["h100"]},
                candidates(accelerators=[gpu(model="h100"), gpu(model="t4")]),
            ),
            "model t4 is not among h100",
        ),
        (
            *("cost-aware-spill", {}, PRICED),
            (
                "costs $4.00 an hour, and cheaper endpoints are not full; "
                "has no known price, and endpoints with a known price are not full"
            ),
        ),
        (
            *("node-concurrency-filter", {"maxRequestsPerNode": 5}, ON_NODES),
            "its node serves 7 requests; its node serves 7 requests",
        ),
        ("header-based-testing-filter", {}, candidates(waiting=[0]), "is not listed in the header"),
        (
            *("context-length-aware", LENGTH, candidates(labels=[{"length": "100-200"}])),
            "is for prompts of another length",
        ),
    ],
)
def test_tf_5_dropped_endpoint_has_its_reason(name: str, parameters: dict, pool: Candidates, reasons: str):
    assert "; ".join(reason for _, reason in dropped_by(name, parameters, pool, Request("r"))) == reasons


def test_endpoint_without_the_prefix_or_that_misses_the_target_says_how_much():
    request = Request("r")
    request.put(PREFIX_MATCH, PrefixMatch(np.array([9, 2], dtype=np.int32), 10, 16))
    pool = candidates(waiting=[0, 0], in_flight_tokens=[0, 0])
    assert dropped_by("prefix-cache-affinity-filter", {}, pool, request) == [("e1", "holds 20% of the prompt")]
    request = Request("r", headers=Headers([("x-llm-d-slo-tpot-ms", "10")]))
    # Between two tokens pass 8 ms at the first endpoint, and 25 ms, 2.5 times the target, at the second one.
    request.put(ENDPOINT_RATES, endpoint_rates([1000, 1000], itl_base=[0.008, 0.025]))
    pool = candidates(waiting=[0, 0], running=[0, 0], in_flight=[0, 0], in_flight_tokens=[0, 0])
    assert dropped_by("slo-fit-filter", {}, pool, request) == [("e1", "is expected to take 2.50 times the target")]


def has_defaults(cls: type[Plugin]) -> bool:
    return not any(field.required for field in msgspec.structs.fields(cls.parameters_type))


@pytest.mark.parametrize("name", [name for name, cls in FILTERS.items() if has_defaults(cls)])
def test_reasons_are_for_all_of_the_dropped_or_for_none(name: str):
    parameters = {"placement": "a/b"} if name == "placement-filter" else {"scoreName": "s"}
    takes = {field.encode_name for field in msgspec.structs.fields(FILTERS[name].parameters_type)}
    given = {key: value for key, value in parameters.items() if key in takes}
    plugin = Registry().build(name, given, name=name, clock=ManualClock(100.0))
    pool = candidates(labels=[{}] * 3, waiting=[0, 1, 2])
    assert len(plugin.why_dropped(Request("r"), pool)) in {0, 3}
