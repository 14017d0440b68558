# SPDX-License-Identifier: Apache-2.0
"""Metrics of single endpoints: load, polls, and failing requests."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from math import isnan

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

from epp.framework.endpoint import Endpoint
from epp.framework.plugin_status import Legacy
from epp.framework.records import Derivation
from epp.framework.snapshot import ANSWERS, REACHABLE, WAITING, Snapshot
from epp.routing.outliers import Failure, Verdict
from epp.telemetry.families import PREFIX, Counters, Families, Gauges, Samples

_LABELS = ("name", "model_server_endpoint")
_OLDER, _OLDER_LABELS = "inference_pool_per_pod_queue_size", ("name", "model_server_pod")


class EndpointSeries(Collector):
    """Costs the event loop nothing, however large the pool is: pages are made in a thread."""

    def __init__(self, pool_name: str, *, legacy: bool = True) -> None:
        """Prepare; with `legacy`, queues are shown under their older name too."""
        self._pool_name = pool_name
        self._legacy = legacy
        self._snapshot = Snapshot()

    @property
    def names(self) -> Collection[str]:
        """Names of the endpoints that are shown."""
        return self._snapshot.endpoints.derive(_slots_by_name).keys()

    @property
    def ids(self) -> Collection[str]:
        """The same as `namespace/name`."""
        return self._snapshot.endpoints.derive(_ids)

    def show(self, snapshot: Snapshot) -> None:
        """Show this snapshot from now on."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield whether each endpoint can be reached, and its queue where that is known."""
        snapshot = self._snapshot
        up = GaugeMetricFamily(
            f"{PREFIX}endpoint_up", "1 for an endpoint that can be reached, 0 otherwise.", labels=_LABELS
        )
        up.samples = Samples(partial(self._up, snapshot, up.name))
        yield up
        name = f"{PREFIX}per_endpoint_queue_size"
        queues = [(GaugeMetricFamily(name, "Requests waiting at an endpoint.", labels=_LABELS), _LABELS)]
        if self._legacy:
            queues.append((GaugeMetricFamily(_OLDER, f"Deprecated: use {name}.", labels=_OLDER_LABELS), _OLDER_LABELS))
        for family, labels in queues:
            family.samples = Samples(partial(self._queues, snapshot, family.name, labels))
            yield family

    def _up(self, snapshot: Snapshot, name: str) -> Iterator[Sample]:
        answers = (snapshot.column(REACHABLE) == ANSWERS).tolist()
        for endpoint, slot in snapshot.endpoints.derive(_slots_by_name).items():
            yield Sample(name, dict(zip(_LABELS, (self._pool_name, endpoint), strict=True)), float(answers[slot]))

    def _queues(self, snapshot: Snapshot, name: str, labels: Sequence[str]) -> Iterator[Sample]:
        waiting = snapshot.column(WAITING).tolist()
        for endpoint, slot in snapshot.endpoints.derive(_slots_by_name).items():
            if not isnan(waiting[slot]):
                yield Sample(name, dict(zip(labels, (self._pool_name, endpoint), strict=True)), waiting[slot])


def _slots_by_name(endpoints: tuple[Endpoint | None, ...]) -> Mapping[str, int]:
    """Return one slot for each name: in several namespaces there may be several."""
    return {endpoint.name: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}


def _ids(endpoints: tuple[Endpoint | None, ...]) -> frozenset[str]:
    return frozenset(endpoint.id for endpoint in endpoints if endpoint is not None)


ENDPOINT_DERIVATIONS: Sequence[Derivation] = ((_slots_by_name,), (_ids,))
"""Values computed from all endpoints."""

_OUTLIERS = "llm_d_epp_outlier_detection_"


class OutlierSeries:
    """Counts suspicions and ejections."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._suspected = Counters(
            f"{_OUTLIERS}suspicions_total",
            "Times that an endpoint was avoided and asked as a connection to it failed or ended, by what its port "
            "said: answers, refuses, silent.",
            ("verdict",),
            registry,
        )
        self._ejected = Counters(
            f"{_OUTLIERS}ejections_total",
            "Ejections of endpoints by the failures that led to them: connection, gateway (502, 503, 504), server "
            "(other errors).",
            ("cause",),
            registry,
        )
        self._spared = Counters(
            f"{_OUTLIERS}ejections_overflow_total",
            "Endpoints that were not ejected, as --outlier-max-ejection-percent of the pool are.",
            ("cause",),
            registry,
        )
        self._now = Gauges(f"{_OUTLIERS}ejections_active", "Endpoints that are ejected now.", (), registry).labels()

    def suspected(self, verdict: Verdict) -> None:
        """Count a suspicion."""
        self._suspected.labels(verdict.value).inc()

    def ejected(self, cause: Failure) -> None:
        """Count an ejection."""
        self._ejected.labels(cause.value).inc()

    def spared(self, cause: Failure) -> None:
        """Count an endpoint that was not ejected."""
        self._spared.labels(cause.value).inc()

    def now(self, count: int) -> None:
        """Set how many are ejected."""
        self._now.set(count)


_POLL_PREFIX = "datalayer_"
_POLL_OLDER = "llm_d_inference_scheduler_datalayer_"


class PollSeries:
    """Counts polls and pages that fail."""

    def __init__(self, families: Families) -> None:
        self._errors = families.counters(
            f"{_POLL_PREFIX}poll_errors_total",
            "Failed polls of endpoints.",
            ("source_type",),
            Legacy(f"{_POLL_OLDER}poll_errors_total", ("source_type",)),
        )
        self._extract_errors = families.counters(
            f"{_POLL_PREFIX}extract_errors_total",
            "Polled pages that could not be read.",
            ("source_type", "extractor_type"),
            Legacy(f"{_POLL_OLDER}extract_errors_total", ("source_type", "extractor_type")),
        )
        self._limits = families.counters(
            f"{_POLL_PREFIX}page_limits_total",
            "Polled pages beyond a limit: refused, or read in part (family_series, series_bytes).",
            ("source_type", "limit"),
        )
        self._interval = families.gauges(
            f"{_POLL_PREFIX}poll_interval_seconds",
            "Time between two polls of an endpoint, which grows with the pool.",
        ).labels()

    def failed(self, source_type: str) -> None:
        """Count a failed poll."""
        self._errors.labels(source_type).inc()

    def unreadable(self, source_type: str, extractor_type: str) -> None:
        """Count a page that an extractor or a tagger could not read."""
        self._extract_errors.labels(source_type, extractor_type).inc()

    def limited(self, source_type: str, limit: str) -> None:
        """Count a page beyond a limit."""
        self._limits.labels(source_type, limit).inc()

    def interval(self, seconds: float) -> None:
        """Set the time between two polls."""
        self._interval.set(seconds)
