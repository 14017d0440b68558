# SPDX-License-Identifier: Apache-2.0
"""Metrics of our own show on the page what those of prometheus_client would."""

import re

import prometheus_client as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from epp.framework.plugin_status import Legacy
from epp.telemetry.families import Counters, Families, Gauges, Histograms

BOUNDS = (0.005, 1, 2.5, 32778)
LABELS = ("model", "code")
VALUES = st.tuples(st.sampled_from(['a"b', "\\", "m\n", ""]), st.sampled_from(["200", "x"]))
AMOUNTS = st.one_of(st.sampled_from(BOUNDS), st.integers(0, 10**6), st.floats(0, 1e6))


def page(registry: CollectorRegistry, encode=generate_latest) -> str:
    """The page without the values of `_created`, which are times."""
    return re.sub(r"(?m)^(.*_created\S*( .*)?) [-+.e0-9]+$", r"\1", encode(registry).decode())


@pytest.mark.parametrize("encode", [generate_latest, generate_openmetrics])
@given(
    events=st.lists(st.tuples(st.sampled_from(["count", "set", "inc", "dec", "observe", "remove"]), VALUES, AMOUNTS))
)
def test_page_is_that_of_the_reference_after_any_events(encode, events):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counters = (
        Counters("c_total", "A counter.", LABELS, ours),
        reference.Counter("c_total", "A counter.", LABELS, registry=theirs),
    )
    gauges = Gauges("g", "A gauge.", LABELS, ours), reference.Gauge("g", "A gauge.", LABELS, registry=theirs)
    histograms = (
        Histograms("h", "A\nhistogram.", LABELS, BOUNDS, ours),
        reference.Histogram("h", "A\nhistogram.", LABELS, registry=theirs, buckets=BOUNDS),
    )
    for event, values, amount in events:
        for counter, gauge, histogram in zip(counters, gauges, histograms, strict=True):
            match event:
                case "count":
                    counter.labels(*values).inc(amount)
                case "set":
                    gauge.labels(*values).set(amount)
                case "inc":
                    gauge.labels(*values).inc()
                case "dec":
                    gauge.labels(*values).dec()
                case "observe":
                    histogram.labels(*values).observe(amount)
                case "remove":
                    for family in (counter, gauge, histogram):
                        family.remove(*values)
    assert page(ours, encode) == page(theirs, encode)


def test_metric_without_labels_is_shown_before_its_first_event():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Counters("c_total", "A counter.", (), ours)
    Gauges("g", "A gauge.", (), ours)
    Histograms("h", "A histogram.", (), BOUNDS, ours)
    reference.Counter("c_total", "A counter.", registry=theirs)
    reference.Gauge("g", "A gauge.", registry=theirs)
    reference.Histogram("h", "A histogram.", registry=theirs, buckets=BOUNDS)
    assert page(ours) == page(theirs)


def test_page_of_chosen_names_has_these_alone():
    registry = CollectorRegistry()
    Counters("c_total", "A counter.", (), registry)
    Histograms("h", "A histogram.", (), BOUNDS, registry)
    assert "h_bucket" not in page(registry.restricted_registry({"c_total"}))
    assert "h_bucket" in page(registry.restricted_registry({"h_bucket"}))


def test_created_series_can_be_left_out_as_with_the_reference(monkeypatch):
    monkeypatch.setenv("PROMETHEUS_DISABLE_CREATED_SERIES", "true")
    registry = CollectorRegistry()
    Counters("c_total", "A counter.", (), registry)
    Histograms("h", "A histogram.", (), BOUNDS, registry)
    assert "_created" not in page(registry)


def test_wrong_number_of_labels_is_refused():
    family = Counters("c_total", "A counter.", LABELS, CollectorRegistry())
    with pytest.raises(ValueError, match=r"c_total has the labels"):
        family.labels("only one")


@given(events=st.lists(st.tuples(st.sampled_from(["count", "remove"]), VALUES, st.integers(0, 9))))
def test_older_name_sums_over_the_labels_that_it_lacks_and_never_decreases(events):
    registry = CollectorRegistry()
    counter = Families(registry).counters("c_total", "A counter.", LABELS, Legacy("old_total", ("model",)))
    histogram = Families(registry).histograms("h", "A histogram.", BOUNDS, LABELS, Legacy("older", ("model",)))
    last: dict[str, float] = {}
    counted: dict[str, int] = {}
    alive: set[tuple[str, str]] = set()
    for event, (model, code), amount in events:
        if event == "count":
            counter.labels(model, code).inc(amount)
            histogram.labels(model, code).observe(amount)
            alive.add((model, code))
            counted[model] = counted.get(model, 0) + amount
        else:
            counter.remove(model, code)
            histogram.remove(model, code)
            alive.discard((model, code))
        for each in [each for each in counted if each not in {name for name, _ in alive}]:
            del counted[each]  # none of its series is left: it begins anew
            last.pop(each, None)
        for each, sum_now in counted.items():
            shown = registry.get_sample_value("old_total", {"model": each})
            assert shown == registry.get_sample_value("older_sum", {"model": each}) == sum_now
            assert shown >= last.get(each, 0)
            last[each] = shown


def test_gauge_under_its_older_name_which_may_be_left_out_forgets_what_was_removed():
    registry, without, older = CollectorRegistry(), CollectorRegistry(), Legacy("old", ("model",))
    Families(without, legacy=False).gauges("g", "A gauge.", LABELS, older).labels("m", "200").set(2)
    assert "old" not in page(without)
    gauge = Families(registry).gauges("g", "A gauge.", LABELS, older)
    gauge.labels("m", "200").set(2)
    gauge.labels("m", "500").set(3)
    assert registry.get_sample_value("old", {"model": "m"}) == 5
    gauge.remove("m", "500")
    assert registry.get_sample_value("old", {"model": "m"}) == 2
