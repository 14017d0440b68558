# SPDX-License-Identifier: Apache-2.0
"""Labels that clients choose: how many get series of their own, which ones, and how long they may be."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from epp.framework import Headers, Request, RequestBody
from epp.framework.datalayer import Report
from epp.framework.refusals import NoEndpointsError
from epp.framework.snapshot import LORA, MODELS, LoraState
from epp.routing.director import Cause, Refusal, Routing
from tests.support.metric_page import ONE, Page

HOUR = 3600.0


class Traffic(Page):
    """Requests that begin and end when a test says so, and where they were counted."""

    def begin(self, model: str = "m", flow: str = "default-flow", target: str = "") -> Routing:
        return self.route(model, flow=flow, target=target)

    def end(self, routing: Routing, status: int = 200, cause: Cause = Cause.NATURAL) -> None:
        routing.response_started(status, Headers, event_stream=False)
        routing.complete(cause)

    def whole(self, model: str = "m", flow: str = "default-flow", target: str = "", status: int = 200) -> None:
        self.end(self.begin(model, flow, target), status)

    def refuse(self, model: str) -> None:
        self.metrics.refused(Refusal(NoEndpointsError(), model=model))

    def reports(self, *models: str, adapters: tuple[str, ...] = ()) -> None:
        """Let the endpoint report these models and adapters."""
        self.store.report(ONE, Report(attributes={MODELS: frozenset(models), LORA: LoraState(frozenset(adapters))}))
        self.metrics.refresh_pool(self.store.snapshot())

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Values of the labels of each series, and its own."""
        full = f"llm_d_epp_{name}"
        families = self.metrics.registry.collect()
        return {tuple(s.labels.values()): s.value for family in families for s in family.samples if s.name == full}

    @property
    def counted(self) -> set[tuple[str, ...]]:
        """The labels under which requests were counted, routed or refused."""
        return {labels[:4] for name in ("request_total", "request_error_total") for labels in self.samples(name)}

    @property
    def models(self) -> set[str]:
        return {model for model, *_ in self.counted}

    @property
    def combinations(self) -> set[tuple[str, str]]:
        """Model and fairness id of each series."""
        return {(model, flow) for model, _, flow, _ in self.counted}

    @property
    def running(self) -> dict[str, float]:
        """Requests in flight by model."""
        found: Counter[str] = Counter()
        for (model, *_), value in self.samples("request_running").items():
            found[model] += value
        return dict(found)

    @property
    def folded(self) -> dict[str, float]:
        return {label: count for (label,), count in self.samples("request_labels_folded_total").items()}


def test_all_places_of_the_default_are_256_and_the_page_shows_one_more():
    traffic = Traffic()
    for number in range(400):
        traffic.whole(f"m{number % 20}", f"f{number}")
    assert len(traffic.combinations) == 256
    for number in range(300):
        traffic.refuse(f"invented-{number}")
    assert len(traffic.combinations) == 257
    assert ("other", "other") in traffic.combinations


def test_many_priorities_are_few_series():
    traffic = Traffic(most=1)
    for priority in range(100):
        request = Request("r", RequestBody(model="m"), priority=priority)
        traffic.metrics.refused(Refusal(NoEndpointsError(), model="m", request=request))
    priorities = [priority for *_, priority in traffic.counted]
    assert len(priorities) == 1 + 16 + 1  # the first, those that fold to `other`, and `other` of them
    assert "other" in priorities


def test_invented_models_leave_the_page_small():
    traffic = Traffic()
    traffic.reports("real")
    traffic.whole("real")
    in_flight = [traffic.begin(f"invented-{number}" + "x" * 200) for number in range(750)]
    for routing in in_flight:
        traffic.end(routing, status=404)
    for number in range(750):
        traffic.whole(f"another-{number}" + "x" * 200, status=404)
    assert len(traffic.models) == 1 + 16 + 1  # real, the first of the others, and `other`
    assert len(generate_latest(traffic.metrics.registry)) < 1_200_000
    traffic.whole("real", "flow")
    assert ("real", "flow") in traffic.combinations


def test_fairness_id_is_folded_before_the_model():
    traffic = Traffic(most=3)
    for flow in "abcd":
        traffic.whole("m", flow)  # the first success shows that it is served
    assert traffic.combinations == {("m", "b"), ("m", "c"), ("m", "other")}
    assert traffic.folded == {"fairness_id": 1}
    traffic.whole("m", "e")
    assert traffic.samples("request_total")["m", "m", "other", "0"] == 2
    assert traffic.folded == {"fairness_id": 2}


def test_model_is_folded_when_there_is_no_place_for_it_at_all():
    traffic = Traffic(most=2)
    for model in ("a", "b", "c"):
        traffic.refuse(model)
    assert traffic.combinations == {("a", "default-flow"), ("b", "default-flow"), ("other", "other")}
    assert traffic.folded == {"model_name": 1}


def test_fairness_ids_of_one_model_leave_room_for_other_models():
    traffic = Traffic(most=4)
    for number in range(100):
        traffic.whole("busy", f"f{number}")
    for model in ("x", "y"):
        traffic.whole(model)  # folded, but a success
        traffic.whole(model)
    assert traffic.combinations >= {("busy", "other"), ("x", "default-flow"), ("y", "default-flow")}


def test_invented_models_do_not_take_the_places_of_reported_ones():
    traffic = Traffic(most=8)
    traffic.reports("base", adapters=("tuned",))
    for number in range(1_000):
        traffic.refuse(f"invented-{number}")
    traffic.whole("base")
    traffic.whole("tuned")
    assert {"base", "tuned"} <= traffic.models
    assert traffic.samples("request_total")["base", "base", "default-flow", "0"] == 1


def test_invented_models_do_not_take_the_places_of_models_that_have_answered():
    traffic = Traffic(most=8)
    for number in range(100):
        traffic.whole(f"invented-{number}", status=404)
    traffic.whole("real")  # under other: nothing is known of it yet
    assert "real" not in traffic.models
    traffic.whole("real")
    assert "real" in traffic.models
    for number in range(100):
        traffic.whole(f"more-{number}", status=404)
    assert "real" in traffic.models


def test_reported_model_goes_before_one_that_has_answered():
    traffic = Traffic(most=2)
    for model in ("anything", "goes"):
        traffic.whole(model)
    traffic.reports("base")
    traffic.whole("base")
    assert traffic.models == {"base", "goes"}


def test_model_that_is_rewritten_by_all_is_served_only_under_a_reported_name():
    traffic = Traffic(most=4)
    traffic.reports("base")
    for number in range(20):
        traffic.whole(f"alias-{number}", target="base")
    traffic.whole("base")
    assert "base" in traffic.models


def test_model_without_a_name_is_not_invented():
    traffic = Traffic(most=4)
    for number in range(20):
        traffic.refuse(f"invented-{number}")
    traffic.refuse("")
    assert "" in traffic.models


def test_combination_unused_for_an_hour_gives_way_to_a_model_that_is_served():
    traffic = Traffic(most=2)
    traffic.whole("old")
    traffic.whole("older", status=404)
    traffic.clock.advance(HOUR - 1)
    traffic.whole("used")
    traffic.whole("used")
    assert traffic.models == {"old", "used", "other"}
    traffic.clock.advance(2)
    traffic.reports()
    traffic.whole("new")
    traffic.whole("new")
    assert traffic.models == {"new", "used", "other"}


def test_series_in_use_stays_whatever_comes():
    traffic = Traffic(most=1)
    under_way = traffic.begin("invented")
    traffic.reports("base")
    traffic.whole("base")
    assert traffic.models == {"invented", "other"}
    traffic.end(under_way, status=404)
    traffic.whole("base")
    assert traffic.models == {"base", "other"}
    assert traffic.running == {"base": 0, "other": 0}


def test_request_ends_where_it_began_though_its_model_has_got_a_place_meanwhile():
    traffic = Traffic(most=1)
    traffic.whole("invented", status=404)
    folded = traffic.begin("base")
    assert traffic.running == {"invented": 0, "other": 1}
    traffic.reports("base")
    own = traffic.begin("base")
    assert traffic.running == {"base": 1, "other": 1}
    traffic.end(folded)
    assert traffic.running == {"base": 1, "other": 0}
    assert traffic.samples("request_duration_seconds_count") == {("other", "other", "other", "0"): 1}
    traffic.end(own)
    assert traffic.running == {"base": 0, "other": 0}


def test_all_series_of_a_combination_go_with_it():
    traffic = Traffic(most=1)
    traffic.whole("invented", status=404)
    traffic.refuse("invented")
    traffic.reports("base")
    traffic.whole("base")
    families = traffic.metrics.registry.collect()
    assert not [s for family in families for s in family.samples if "invented" in s.labels.values()]


@pytest.mark.parametrize("length", [129, 1_000_000])
def test_long_names_are_cut_and_stay_two(length):
    traffic = Traffic()
    same = "x" * (length - 1)
    for last in "ab":
        traffic.whole(same + last, same + last)
        traffic.whole(same + last, same + last)
        traffic.refuse(same + last)
    values = {value for labels in traffic.counted for value in labels}
    assert max(map(len, values)) == 128
    assert set(traffic.samples("request_total").values()) == {2}
    assert set(traffic.samples("request_error_total").values()) == {1}
    assert len(traffic.models) == 2


def test_long_name_that_an_endpoint_reports_counts_as_reported_and_one_of_128_characters_is_whole():
    traffic = Traffic(most=1)
    traffic.refuse("invented")
    traffic.reports("x" * 200)
    traffic.whole("x" * 200)
    assert len(next(iter(traffic.models))) == 128
    traffic = Traffic()
    traffic.whole("é" * 128)
    assert traffic.models == {"é" * 128}


MODELS_ASKED = st.sampled_from(["a", "b", "c", "d", "e", "", "other", "x" * 200])
FLOWS = st.sampled_from(["f", "g", "h", "default-flow", "other", "y" * 200])
STEPS = st.one_of(
    st.tuples(st.just("begin"), MODELS_ASKED, FLOWS, st.sampled_from(["", "a", "z"])),
    st.tuples(st.just("end"), st.integers(0, 100), st.sampled_from([200, 404, 503]), st.sampled_from(Cause)),
    st.tuples(st.just("refuse"), MODELS_ASKED),
    st.tuples(st.just("report"), st.frozensets(MODELS_ASKED, max_size=3), st.frozensets(MODELS_ASKED, max_size=3)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, HOUR, 2 * HOUR])),
)


@given(steps=st.lists(STEPS, max_size=60), most=st.integers(1, 6))
def test_combinations_are_bounded_and_running_requests_balance_whatever_comes(steps, most):
    traffic = Traffic(most)
    under_way: list[Routing] = []
    begun = 0
    for kind, *details in steps:
        match kind, details:
            case "begin", (model, flow, target):
                under_way.append(traffic.begin(model, flow, target))
                begun += 1
            case "end", (number, status, cause) if under_way:
                traffic.end(under_way.pop(number % len(under_way)), status, cause)
            case "refuse", (model,):
                traffic.refuse(model)
                begun += 1
            case "report", (models, adapters):
                traffic.reports(*models, adapters=tuple(adapters))
            case "wait", (seconds,):
                traffic.clock.advance(seconds)
        check(traffic, most, len(under_way))
    for routing in under_way:
        traffic.end(routing)
    check(traffic, most, 0)
    assert sum(traffic.folded.values()) <= begun


def check(traffic: Traffic, most: int, under_way: int) -> None:
    shown = [
        series
        for family in traffic.metrics.registry.collect()
        for sample in family.samples
        if "fairness_id" in (series := sample.labels)
    ]
    combinations = {(s["model_name"], s["target_model_name"], s["fairness_id"], s["priority"]) for s in shown}
    assert len(combinations - {("other", "other", "other", "0")}) <= most
    assert all(len(value) <= 128 for labels in combinations for value in labels)
    running = Counter(traffic.samples("request_running"))
    assert running.total() == under_way
    assert all(value >= 0 for value in running.values())
    assert {model for model, *_ in combinations} >= {model for model, *_ in running}
