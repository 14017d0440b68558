# SPDX-License-Identifier: Apache-2.0
"""Metrics of a main process and its workers as one page."""

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from epp.app.picker import Picker
from epp.app.settings import PickerSettings
from epp.extproc.settings import ServerSettings
from epp.framework import Endpoint
from epp.pool.discovery import StaticDiscovery
from epp.sharing import metrics
from epp.sharing.channel import Channel, ChannelClosedError
from epp.sharing.healthz import Processes
from epp.sharing.metrics import CALL, MergedMetrics, packed_metrics, show_processes
from epp.telemetry.families import Counters, Gauges, Histograms

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


class Process:
    """A process with a counter, a histogram and gauges, which answers unless it hangs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counters("requests_total", "Of endpoints.", ("endpoint",), self.registry)
        self.seconds = Histograms("seconds", "Of requests.", (), (0.1, 1), self.registry)
        self.running = Gauges("llm_d_epp_request_running", "Its own.", (), self.registry)
        self.ready = Gauges("llm_d_epp_ready_endpoints", "Of the pool.", ("name",), self.registry)
        self.hangs = False
        self.may_answer: asyncio.Event | None = None

    async def call(self, kind: str, *, most_seconds: float) -> object:
        """Answer as its channel would."""
        assert kind == CALL
        assert most_seconds > 0
        if self.hangs:
            raise ChannelClosedError("no answer")
        if self.may_answer is not None:
            await self.may_answer.wait()
        return await packed_metrics(self.registry)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of the main process, which runs in another thread than the page is made in."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Fleet:
    """A main process, and workers that come and go."""

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int = 2) -> None:
        self.main = Process()
        self.workers = [Process() for _ in range(workers)]
        self.merged = MergedMetrics(self.main.registry)
        self.loop = loop
        self.follow()

    def follow(self) -> None:
        """Have the page of the main process show its workers."""

        async def follow() -> None:
            self.merged.follow(lambda: self.workers)

        asyncio.run_coroutine_threadsafe(follow(), self.loop).result()

    def page(self, *names: str) -> dict[str, float]:
        """Return the values of all samples, or of those with a name, by name and labels."""
        source = self.merged.restricted_registry(names) if names else self.merged
        families = text_string_to_metric_families(generate_latest(source).decode())
        return {
            sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }


@pytest.fixture
def fleet(loop) -> Fleet:
    return Fleet(loop)


def test_counters_and_histograms_are_summed_by_their_labels(fleet):
    one, other = fleet.workers
    one.requests.labels("a").inc(2)
    other.requests.labels("a").inc(3)
    other.requests.labels("b").inc()
    one.seconds.labels().observe(0.5)
    other.seconds.labels().observe(0.05)
    page = fleet.page()
    assert (page["requests_total a"], page["requests_total b"]) == (5, 1)
    assert [page[f"seconds_bucket {bound}"] for bound in ("0.1", "1.0", "+Inf")] == [1, 2, 2]
    assert page["seconds_count"] == 2
    assert page["seconds_sum"] == pytest.approx(0.55, abs=2e-6)
    created = min(each.requests.labels("a").created for each in fleet.workers)
    assert page["requests_created a"] == pytest.approx(created, abs=1e-5)


def test_gauges_are_of_the_main_process_or_summed(fleet):
    for number, process in enumerate((fleet.main, *fleet.workers)):
        process.running.labels().set(number)
        process.ready.labels("pool").set(7 - number)
    fleet.workers[0].ready.labels("unknown to main").set(3)
    fleet.workers[1].ready.labels("unknown to main").set(4)
    page = fleet.page()
    assert page["llm_d_epp_request_running"] == 0 + 1 + 2
    assert page["llm_d_epp_ready_endpoints pool"] == 7
    assert page["llm_d_epp_ready_endpoints unknown to main"] == 4


def test_worker_that_hangs_keeps_its_values_and_one_that_ended_its_counters(fleet):
    for worker in fleet.workers:
        worker.requests.labels("a").inc(10)
        worker.running.labels().set(1)
    before = fleet.page()
    assert (before["requests_total a"], before["llm_d_epp_request_running"]) == (20, 2)
    fleet.workers[0].hangs = True
    fleet.workers[1].requests.labels("a").inc()
    assert (fleet.page()["requests_total a"], fleet.page()["llm_d_epp_request_running"]) == (21, 2)
    fleet.workers[0] = Process()
    page = fleet.page()
    assert (page["requests_total a"], page["llm_d_epp_request_running"]) == (21, 1)
    fleet.workers[0].requests.labels("a").inc()
    assert [fleet.page()["requests_total a"] for _ in range(2)] == [22, 22]


def test_answer_that_comes_too_late_is_shown_on_the_next_page(fleet, monkeypatch):
    worker = fleet.workers[0]
    worker.requests.labels("a").inc(10)
    worker.may_answer = asyncio.Event()
    with monkeypatch.context() as patched:
        patched.setattr(metrics, "_PATIENCE_SECONDS", 0.01)
        assert "requests_total a" not in fleet.page()
    fleet.loop.call_soon_threadsafe(worker.may_answer.set)
    assert fleet.page()["requests_total a"] == 10


def test_series_that_a_worker_drops_stays_in_the_sum_until_all_have_dropped_it(fleet):
    for worker in fleet.workers:
        worker.requests.labels("a").inc(10)
    fleet.page()
    fleet.workers[0].requests.remove("a")
    assert fleet.page()["requests_total a"] == 20
    fleet.workers[0].requests.labels("a").inc(2)
    assert fleet.page()["requests_total a"] == 22
    for worker in fleet.workers:
        worker.requests.remove("a")
    assert "requests_total a" not in fleet.page()
    fleet.workers[0].requests.labels("a").inc()
    assert fleet.page()["requests_total a"] == 1


def test_page_of_chosen_names_has_only_these_and_forgets_nothing(fleet):
    for worker in fleet.workers:
        worker.requests.labels("a").inc(10)
    fleet.page()
    del fleet.workers[0]
    assert fleet.page("llm_d_epp_request_running") == {"llm_d_epp_request_running": 0}
    assert fleet.page("requests_total") == {"requests_total a": 20}


@pytest.mark.parametrize("render", [generate_latest, open_metrics])
def test_page_of_a_whole_picker_is_the_same_as_without_workers(render):
    discovery = StaticDiscovery([Endpoint("a", "10.0.0.1", 8000), Endpoint("b", "10.0.0.2", 8000)])
    picker = Picker(PickerSettings(server=ServerSettings(), discovery=discovery))
    picker.metrics.refresh_pool(picker.store.snapshot())
    picker.metrics.poll_error("http")
    own, merged = (
        {line for line in render(registry).decode().splitlines() if not line.startswith(("#", "process_"))}
        for registry in (picker.metrics.registry, MergedMetrics(picker.metrics.registry))
    )
    assert len(own) > 100
    assert {line for line in own ^ merged if "_sum" not in line and "_created" not in line} == set()


async def test_workers_answer_over_their_channels():
    ends = socket.socketpair()
    main, worker = Process(), Process()
    worker.requests.labels("a").inc(5)
    channels = (Channel(ends[0], {}), Channel(ends[1], {CALL: lambda _: packed_metrics(worker.registry)}))
    async with asyncio.TaskGroup() as tasks:
        for channel in channels:
            await channel.open()
            tasks.create_task(channel.run())
        merged = MergedMetrics(main.registry)
        merged.follow(lambda: channels[:1])
        assert b'\nrequests_total{endpoint="a"} 5.0\n' in await asyncio.to_thread(generate_latest, merged)
        channels[0].close()
        assert b'\nrequests_total{endpoint="a"} 5.0\n' in await asyncio.to_thread(generate_latest, merged)


WORKERS, COUNT = st.integers(0, 1), ("count", 0, 0)
EVENTS = st.one_of(
    st.tuples(st.sampled_from(("count", "drop", "drop and count")), WORKERS, st.just(0)),
    st.tuples(st.just("observe"), WORKERS, st.floats(0, 1e6, allow_subnormal=False)),
    st.tuples(st.sampled_from(("hang", "answer", "replace", "end", "begin")), WORKERS, st.just(0)),
)


@given(st.lists(st.lists(EVENTS, max_size=4), max_size=10))
@example([[COUNT, COUNT], [("drop and count", 0, 0)]])
@example([[COUNT, COUNT, ("count", 1, 0)], [("replace", 0, 0)], [("count", 1, 0)], [("drop", 0, 0), ("end", 1, 0)]])
@example([[("begin", 0, 0), ("observe", 0, 0.1), ("observe", 1, 0.2), ("observe", 2, 0.3)], [("end", 0, 0)]])
def test_counters_never_fall_whatever_becomes_of_the_workers(loop, times):
    fleet = Fleet(loop)
    last: dict[str, float] = {}
    for events in times:
        for what, number, value in events:
            happen(fleet, what, number % max(len(fleet.workers), 1), value)
        page = {
            name: value
            for name, value in fleet.page().items()
            if name.startswith(("requests_total", "seconds_bucket", "seconds_count", "seconds_sum"))
        }
        assert {name for name in last if name not in page} <= {"requests_total a"}  # only this is ever dropped
        assert all(page[name] >= before for name, before in last.items() if name in page)
        assert page["seconds_bucket 0.1"] <= page["seconds_bucket 1.0"] <= page["seconds_bucket +Inf"]
        assert page["seconds_bucket +Inf"] == page["seconds_count"]
        present = [worker for worker in fleet.workers if not worker.hangs]
        assert page["seconds_count"] >= sum(sum(worker.seconds.labels().counts) for worker in present)
        last = page


def happen(fleet: Fleet, what: str, number: int, value: float) -> None:
    """Have something become of a worker."""
    if what == "begin" or not fleet.workers:
        fleet.workers.append(Process())
        return
    worker = fleet.workers[number]
    if "drop" in what:
        worker.requests.remove("a")
    if "count" in what:
        worker.requests.labels("a").inc()
    if what == "observe":
        worker.seconds.labels().observe(value)
    if what in ("replace", "end"):
        del fleet.workers[number]
    if what == "replace":
        fleet.workers.append(Process())
    if what in ("hang", "answer"):
        worker.hangs = what == "hang"


GAUGES = dict(re.findall(r"^\| `(\w+)` \| gauge \| (.*?) \|", DOCS.read_text(), re.MULTILINE))
"""Labels of all gauges of a page, by name: the documentation is made from the program."""
OF_MAIN = """
leader_election_master_status inference_extension_flow_control_pool_saturation inference_extension_info
inference_pool_average_kv_cache_utilization inference_pool_average_queue_size inference_pool_average_running_requests
inference_pool_per_pod_queue_size inference_pool_ready_pods llm_d_epp_accelerator_busy_cost_per_hour
llm_d_epp_accelerator_cost_per_hour llm_d_epp_accelerator_ready_endpoints llm_d_epp_average_kv_cache_utilization
llm_d_epp_average_queue_size llm_d_epp_average_running_requests llm_d_epp_config_generation
llm_d_epp_datalayer_poll_interval_seconds llm_d_epp_decision_buffer_bytes llm_d_epp_dynamic_scorer_age_seconds
llm_d_epp_dynamic_scorer_health llm_d_epp_dynamic_scorer_results llm_d_epp_endpoint_source_endpoints
llm_d_epp_endpoint_source_hidden llm_d_epp_endpoint_source_in_trouble llm_d_epp_endpoint_source_stale_seconds
llm_d_epp_endpoint_up llm_d_epp_endpoints_without_price llm_d_epp_extproc_transport
llm_d_epp_flow_control_pool_saturation llm_d_epp_flow_control_stale_endpoints llm_d_epp_hub_kinds_unread
llm_d_epp_hub_objects llm_d_epp_hub_stale_seconds llm_d_epp_info llm_d_epp_inherited_requests
llm_d_epp_kubernetes_object_problems llm_d_epp_kubernetes_objects llm_d_epp_kubernetes_watch_current
llm_d_epp_kubernetes_watch_stale_seconds llm_d_epp_page_connections_open llm_d_epp_per_endpoint_queue_size
llm_d_epp_quota_limit llm_d_epp_ready_endpoints llm_d_epp_shared_state_age_seconds llm_d_epp_shared_state_connected
llm_d_epp_shared_state_peers llm_d_epp_std_dev_kv_cache_utilization llm_d_epp_std_dev_queue_size
llm_d_epp_std_dev_running_requests llm_d_epp_worker_processes process_start_time_seconds
process_virtual_memory_max_bytes
"""
"""Gauges that are the same in every process, or that only the main process has: a new one goes here or gets a rule."""


def test_every_gauge_has_a_rule(fleet):
    processes = (fleet.main, *fleet.workers)
    for process, value in zip(processes, (3, 2, 4), strict=True):
        process.registry = CollectorRegistry()
        for name, labels in GAUGES.items():
            names = ("plugin_type",) if "plugin_type" in labels else ()
            Gauges(name, "As documented.", names, process.registry).labels(*names).set(value)
    fleet.merged = MergedMetrics(fleet.main.registry)
    fleet.follow()
    page = {name.partition(" ")[0]: value for name, value in fleet.page().items()}
    assert page.keys() == GAUGES.keys()
    assert {name for name, value in page.items() if value == 3} == set(OF_MAIN.split()) & GAUGES.keys()
    assert {name for name, value in page.items() if value == 6} == {"llm_d_epp_budget_limit"}
    assert set(page.values()) == {3, 4, 2, 3 + 2 + 4, 2 + 4}


def test_processes_are_counted_by_state():
    registry = CollectorRegistry()
    show_processes(registry, lambda: Processes(serving=2, starting=1, replaced=3))
    text = generate_latest(registry).decode()
    assert 'llm_d_epp_worker_processes{state="serving"} 2.0' in text
    assert 'llm_d_epp_worker_processes{state="starting"} 1.0' in text
    assert "llm_d_epp_worker_replacements_total 3.0" in text
