# SPDX-License-Identifier: Apache-2.0
"""Metrics of flow control: time in queues, outcomes, waiting requests, and saturation of the pool and the queues."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from prometheus_client.registry import CollectorRegistry

from epp.admission.flow_control.control import FlowControl
from epp.admission.flow_control.settings import AT_ONCE, QUEUEING_OUTCOME, Limits, Outcome
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.flow_control import SaturationDetector, saturation_of
from epp.framework.plugin import Plugin
from epp.framework.request import IN_FLIGHT_COST, DataKey, Request
from epp.framework.snapshot import METRICS_AT, Snapshot
from epp.routing.datastore import Datastore
from epp.telemetry.families import EXTENSION, SCHEDULING_SECONDS, Computed, Families, Gauges, Row
from epp.telemetry.request_series import OTHER, Bounded, RequestSeries, Series, shortened

_PREFIX = "flow_control_"
_REQUEST = ("model_name", "target_model_name", "fairness_id", "priority")
_MAX_PRIORITIES = 64
"""Priorities with their own series; objects name them."""
_MOST_FLOWS = 1024
"""Combinations of fairness id and priority with their own series, in metrics without a model label."""
QUEUE_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONFIRMATION_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_QUEUED: DataKey[Series] = DataKey("queue-series")
"""The series of a waiting request."""


class FlowSeries:
    """Counts requests and queues; labels that clients choose are bounded by `requests`."""

    def __init__(self, pool_name: str, clock: Clock, requests: RequestSeries, families: Families) -> None:
        self._pool = pool_name
        self._clock = clock
        self._requests = requests
        self._priorities = Bounded[str](_MAX_PRIORITIES)
        self._entered = Bounded[tuple[str, ...]](_MOST_FLOWS)

        def gauges(name: str, text: str, *labels: str, legacy: bool = False) -> Gauges:
            return families.gauges(f"{_PREFIX}{name}", text, labels, EXTENSION if legacy else "")

        in_queue = (*_REQUEST, "outcome", "inference_pool")
        self._seconds = families.histograms(
            f"{_PREFIX}request_queue_duration_seconds",
            "Time in a queue, by outcome; 0 for a request that was dispatched or rejected without waiting.",
            QUEUE_SECONDS,
            in_queue,
            EXTENSION,
        )
        entering = ("fairness_id", "priority", "outcome")
        self._enqueue_seconds = families.histograms(
            f"{_PREFIX}request_enqueue_duration_seconds",
            "Time to put a request into its queue, or to reject it.",
            SCHEDULING_SECONDS,
            entering,
            EXTENSION,
        )
        cycles = families.histograms(
            f"{_PREFIX}dispatch_cycle_duration_seconds",
            "Time of one dispatch cycle, including the routing of released requests.",
            SCHEDULING_SECONDS,
            legacy=EXTENSION,
        )
        self.cycled = cycles.labels().observe
        self._ended = families.counters(
            f"{_PREFIX}requests_total",
            "Requests by outcome of flow control.",
            ("outcome", "priority", "inference_pool"),
        )
        waiting = (*_REQUEST, "inference_pool")
        self._size = gauges("queue_size", "Waiting requests.", *waiting, legacy=True)
        self._bytes = gauges("queue_bytes", "Bytes of the bodies of waiting requests.", *waiting, legacy=True)
        text = (
            "Saturation of the endpoints by stage, according to the detector: `prefill`, `decode` (also endpoints "
            "without a role), and `effective`, the larger of the two. Full from 1 on; 1 for an empty pool."
        )
        self._saturation = gauges("pool_saturation", text, "inference_pool", "stage", legacy=True)
        text = "Endpoints whose metrics are missing or too old for the detector."
        self._stale = gauges("stale_endpoints", text, "detector")
        name, text = "llm_d_epp_flow_control_capacity_utilization_", "that wait at a priority, as a share of its limit."
        texts = {f"{name}requests": f"Requests {text}", f"{name}bytes": f"Bytes of bodies {text}"}
        self._bands: Sequence[Row] = ()
        Computed(families.registry, ("priority", "inference_pool"), texts, lambda: self._bands)
        name = "llm_d_epp_flow_control_global_capacity_utilization_"
        text = "that wait, as a share of the limit for all priorities; absent without one."
        texts = {f"{name}requests": f"Requests {text}", f"{name}bytes": f"Bytes of bodies {text}"}
        self._all_bands: Sequence[Row] = ()
        Computed(families.registry, ("inference_pool",), texts, lambda: self._all_bands)
        self._issued = families.counters(
            f"{_PREFIX}revocations_issued_total",
            "Requests in flight that were revoked, by priority of the request that they make room for.",
            ("priority", "inference_pool"),
        )
        self._revoked = families.counters(
            f"{_PREFIX}revocations_total",
            "Revoked requests by outcome: confirmed if they ended, timed_out if they did not end in time.",
            ("outcome", "inference_pool"),
        )
        self._target = families.gauges(
            f"{_PREFIX}reclaim_target",
            "Saturation of the endpoint above the allowed one at the last revocation, in units of pool_saturation.",
            ("inference_pool",),
        ).labels(pool_name)
        self._pending = families.gauges(
            f"{_PREFIX}pending_reclaim",
            "Saturation that revoked requests still cause at an endpoint, in units of pool_saturation.",
            ("inference_pool",),
        ).labels(pool_name)
        self._confirmation_seconds = families.histograms(
            f"{_PREFIX}revocation_confirmation_seconds",
            "Time from the revocation of a request to its end.",
            CONFIRMATION_SECONDS,
            ("inference_pool",),
        ).labels(pool_name)
        self._revoked_for = Bounded[str](_MAX_PRIORITIES)
        self._credit = 0.0

    def queued(self, request: Request) -> None:
        series = self._series(request)
        request.put(_QUEUED, series)
        series.with_more(self._size, self._pool).inc()
        series.with_more(self._bytes, self._pool).value += request.size_bytes

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Count a request that leaves a queue or is rejected; `routed` counts one dispatched without waiting."""
        series = request.get(_QUEUED)
        if series is None:
            if outcome is not Outcome.DISPATCHED:
                self._count(request, self._series(request), outcome, seconds, release=True)
            return
        request.drop(_QUEUED)
        series.with_more(self._size, self._pool).dec()
        series.with_more(self._bytes, self._pool).value -= request.size_bytes
        self._count(request, series, outcome, seconds, release=True)

    def enqueued(self, request: Request, seconds: float, *, waits: bool) -> None:
        queueing = request.get(QUEUEING_OUTCOME)
        outcome = Outcome.NOT_YET_FINALIZED if waits or queueing is None else queueing.outcome
        series = self._series(request)
        flow = self._entered.shown(series.labels[2:], (OTHER, self._priority(request.priority)))
        self._enqueue_seconds.labels(*flow, outcome.value).observe(seconds)
        self._requests.release(series, self._clock.now())

    def routed(self, request: Request, series: Series) -> None:
        """Count a request that was dispatched without waiting."""
        if request.get(QUEUEING_OUTCOME) is AT_ONCE:
            self._count(request, series, Outcome.DISPATCHED, 0.0)

    def refused(self, request: Request | None) -> None:
        """Count a request that was dispatched without waiting, and refused later."""
        if request is not None and request.get(QUEUEING_OUTCOME) is AT_ONCE:
            self._count(request, self._series(request), Outcome.DISPATCHED, 0.0, release=True)

    def revoked(
        self,
        target: int,  # noqa: ARG002  not shown
        issued: int,
        pending: int,
        *,
        priority: int,
        deficit: float,
        credit: float,
    ) -> None:
        self._issued.labels(self._revoked_for.shown(str(priority), OTHER), self._pool).inc(issued)
        self._credit = credit
        self._target.set(deficit)
        self._pending.set(pending * credit)

    def revocation_confirmed(self, seconds: float, pending: int) -> None:
        self._revoked.labels("confirmed", self._pool).inc()
        self._confirmation_seconds.observe(seconds)
        self._pending.set(pending * self._credit)

    def revocations_given_up(self, count: int) -> None:
        self._revoked.labels("timed_out", self._pool).inc(count)
        self._pending.set(0)

    def show(self, snapshot: Snapshot, flow: FlowControl | None, now: float) -> None:
        """Set the gauges to the current values; `flow` is None if flow control is off."""
        self._saturation.clear()
        self._stale.clear()
        self._bands = self._all_bands = ()
        if flow is None:
            return
        settings, queues = flow.settings, flow.queues
        self._show_detector(settings.detector, Candidates(snapshot, snapshot.available, now=now))
        self._all_bands = [((self._pool,), _shares(queues.requests, queues.size_bytes, settings.limits))]
        bands: list[Row] = []
        for priority in {*settings.priorities_with(0), *queues.priorities[:_MAX_PRIORITIES]}:
            band = queues.bands.get(priority)
            requests, size_bytes = (0, 0) if band is None else (len(band), band.size_bytes)
            bands.append(((str(priority), self._pool), _shares(requests, size_bytes, settings.of(priority).limits)))
        self._bands = bands

    def _show_detector(self, detector: SaturationDetector[Any], pool: Candidates) -> None:
        for stage, share in saturation_of(detector, pool)._asdict().items():
            if share is not None:
                self._saturation.labels(self._pool, stage).set(share)
        oldest = detector.oldest_metrics_seconds
        if oldest < inf:
            fresh = pool.now - pool.values(METRICS_AT) <= oldest
            self._stale.labels(detector.name).set(len(pool) - int(np.count_nonzero(fresh)))

    def _count(
        self, request: Request, series: Series, outcome: Outcome, seconds: float, *, release: bool = False
    ) -> None:
        series.with_more(self._seconds, outcome.value, self._pool).observe(seconds)
        self._ended.labels(outcome.value, self._priority(request.priority), self._pool).inc()
        if release:
            self._requests.release(series, self._clock.now())

    def _series(self, request: Request) -> Series:
        return self._requests.hold(request.body.model, request.model, request.fairness_id, str(request.priority))

    def _priority(self, priority: int) -> str:
        return self._priorities.shown(str(priority), OTHER)


def _shares(requests: int, size_bytes: int, limits: Limits) -> tuple[float | None, float | None]:
    """Return the used shares of the limits; None without a limit."""
    return (
        requests / limits.requests if limits.requests else None,
        size_bytes / limits.size_bytes if limits.size_bytes else None,
    )


_MOST_INFLIGHT_FLOWS = 256
"""Fairness ids with their own series, those with the most requests; clients can send any number of ids."""


def show_inflight(registry: CollectorRegistry, store: Datastore, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
    """Add the load in flight for each configured producer of tokens in flight; all producers share one ledger.

    Without a producer, the metrics have its default name, and the tokens are unknown.
    """

    def rows() -> Iterator[Row]:
        producers = [plugin.name for plugin in plugins() if IN_FLIGHT_COST in plugin.writes]
        counts = _inflight(store)
        for producer in producers or (IN_FLIGHT_COST.default_producer,):
            for (endpoint, namespace, fairness_id, priority), (requests, tokens) in counts.items():
                labels = (endpoint, namespace, producer, fairness_id, priority)
                yield labels, (requests, tokens if producers else None)

    texts = {
        "llm_d_epp_inflight_requests": "Requests in flight at an endpoint.",
        "llm_d_epp_inflight_tokens": "Uncached prompt tokens in flight at an endpoint, with the expected output if "
        "that is configured.",
    }
    Computed(registry, ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority"), texts, rows)


def _inflight(store: Datastore) -> Mapping[tuple[str, str, str, str], tuple[int, int]]:
    """Return requests and tokens by endpoint, namespace, fairness id and priority."""
    by_flow = store.ledger.by_flow
    endpoints = store.latest.endpoints.values
    sizes: Counter[str] = Counter()
    for place, work in by_flow.items():
        sizes[place.flow.fairness_id] += work.requests
    shown = {fairness_id for fairness_id, _ in sizes.most_common(_MOST_INFLIGHT_FLOWS)}
    counts: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    for place, work in by_flow.items():
        endpoint = endpoints[place.slot] if place.slot < len(endpoints) else None
        if endpoint is None:
            continue
        fairness_id = shortened(place.flow.fairness_id) if place.flow.fairness_id in shown else OTHER
        labels = endpoint.name, endpoint.namespace, fairness_id, str(place.flow.priority)
        requests, tokens = counts.get(labels, (0, 0))
        counts[labels] = requests + work.requests, tokens + work.tokens
    return counts
