# SPDX-License-Identifier: Apache-2.0
"""Metrics of the picker itself: build, configuration, leadership, inputs, watches, budgets and connections."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from epp.extproc.budgets import Budgets
from epp.extproc.open_streams import StreamObserver
from epp.framework.plugin_status import HasInputs, Legacy
from epp.kube.watched import Watched, WatchState
from epp.runtime.http_connections import ConnectionCounts, Cut
from epp.telemetry.families import STREAM_SECONDS, Counters, Families, Gauges

_PACKAGE = "inference-epp"
_BUILD_LABELS = ("commit", "build_ref")
_COMMIT = "EPP_COMMIT"
"""Environment variable with the commit that an image was built from."""


def show_build(families: Families, transport: str) -> None:
    """Add the metric, and that of what carries ext_proc."""
    info = families.gauges(
        "info",
        "1, with the commit and the version of this program; an installation that does not tell has no commit.",
        _BUILD_LABELS,
        Legacy("inference_extension_info", _BUILD_LABELS),
    )
    info.labels(*build()).set(1)
    carrier = families.gauges("extproc_transport", "1 for the --transport that carries ext_proc.", ("transport",))
    carrier.labels(transport).set(1)


def build() -> tuple[str, str]:
    """Return the commit, empty for unknown, and the version."""
    try:
        installed = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        return os.environ.get(_COMMIT, ""), ""
    origin = installed.read_text("direct_url.json")  # of an installation from a repository, it has the commit
    source = json.loads(origin).get("vcs_info", {}) if origin else {}
    return os.environ.get(_COMMIT) or source.get("commit_id", ""), f"v{installed.version}"


class ConfigSeries:
    """Counts versions of the configuration file, and restarts of tasks."""

    def __init__(self, families: Families) -> None:
        self._number = 1
        self._generation = families.gauges(
            "config_generation", "Generation of the configuration in effect, from 1."
        ).labels()
        self._generation.set(self._number)
        self._good = families.gauges(
            "config_last_reload_successful", "1 if the current configuration file is in effect, 0 if it was rejected."
        ).labels()
        self._good.set(1)
        self._reloads = families.counters(
            "config_reloads_total", "New versions of the configuration file, by result.", ("result",)
        )
        self._task_failures = families.counters(
            "background_task_failures_total", "Restarts of background tasks after an error.", ("task",)
        )

    def taken(self, generation: int) -> None:
        """Record that the configuration file is in effect."""
        self._good.set(1)
        if generation != self._number:
            self._reloads.labels("taken").inc()
            self._generation.set(generation)
        self._number = generation

    def refused(self) -> None:
        """Record that the configuration file was rejected."""
        self._good.set(0)
        self._reloads.labels("refused").inc()

    def task_failed(self, kind: str) -> None:
        """Count an error of a background task."""
        self._task_failures.labels(kind).inc()


class LeaderMetrics(Collector):
    """Shows whether this replica leads."""

    def __init__(self, lease: str, *, is_leader: Callable[[], bool]) -> None:
        self._lease = lease
        self._is_leader = is_leader

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return (_family(),)

    def collect(self) -> Iterator[Metric]:
        """Yield the sample of the lease."""
        family = _family()
        family.add_metric((self._lease,), float(self._is_leader()))
        yield family


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "leader_election_master_status",
        "1 while this replica holds the lease of that name, 0 while it stands by.",
        labels=("name",),
    )


_INPUT_LABELS = ("plugin_name", "file")


class InputMetrics(Collector):
    """Shows the inputs of all that is in use now; those of a plugin that is not any more are gone at once."""

    def __init__(self, owners: Callable[[], Iterable[HasInputs]]) -> None:
        self._owners = owners

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _input_families()

    def collect(self) -> Iterator[Metric]:
        """Yield a sample of each metric for each file, or for each kind of object."""
        problems, kept, rejected, ignored = families = _input_families()
        for owner in self._owners():
            inputs = owner.inputs
            problem_counts = Counter(each.file for each in inputs.problems)
            kept_counts: Counter[str] = Counter()
            for each in inputs.problems:
                kept_counts[each.file] += each.kept
            for file, count in inputs.rejected.items():
                problems.add_metric((owner.name, file), problem_counts[file])
                kept.add_metric((owner.name, file), kept_counts[file])
                rejected.add_metric((owner.name, file), count)
            for kind, count in Counter(each.kind for each in inputs.ignored).items():
                ignored.add_metric((owner.name, kind), count)
        yield from families


def _input_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "llm_d_epp_input_problems",
            "1 for a file whose newest version is not in effect, or else the number of such objects in it.",
            labels=_INPUT_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_input_objects_kept",
            "Objects in effect in an earlier version, since the newest one cannot be used or the file is gone.",
            labels=_INPUT_LABELS,
        ),
        CounterMetricFamily(
            "llm_d_epp_input_versions_rejected",
            "Versions of a file, or of its objects, that cannot be used.",
            labels=_INPUT_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_input_values_ignored",
            "Impossible values, by the kind of the objects that are used without them.",
            labels=("plugin_name", "kind"),
        ),
    )


_WATCH_LABELS = ("resource", "namespace")


class WatchMetrics(Collector):
    """Shows the watches of the cluster that are in use."""

    def __init__(self, watches: Callable[[], Iterable[Watched[Any]]]) -> None:
        self._watches = watches

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _watch_families()

    def collect(self) -> Iterator[Metric]:
        """Yield a sample of each metric for each watch."""
        current, stale, objects, problems, lists, rejected = families = _watch_families()
        seen: set[tuple[str, str]] = set()
        for watch in self._watches():
            labels = (watch.resource.title, watch.namespace)
            if labels in seen:
                continue  # another selector of the same objects, for the moment in which a pool changes its own
            seen.add(labels)
            current.add_metric(labels, float(watch.state is WatchState.CURRENT))
            stale.add_metric(labels, watch.stale_seconds)
            objects.add_metric(labels, len(watch.objects))
            problems.add_metric(labels, len(watch.problems))
            lists.add_metric(labels, watch.lists)
            rejected.add_metric(labels, watch.rejected)
        yield from families


def _watch_families() -> tuple[
    GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily
]:
    return (
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_watch_current",
            "1 while the objects of a resource are kept up to date, 0 while they cannot be read.",
            labels=_WATCH_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_watch_stale_seconds",
            "Time since the objects of a resource could last be read; 0 while they are kept up to date.",
            labels=_WATCH_LABELS,
        ),
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_objects", "Objects of a resource that are in effect.", labels=_WATCH_LABELS
        ),
        GaugeMetricFamily(
            "llm_d_epp_kubernetes_object_problems",
            "Objects whose newest version cannot be used; at most 100 are counted.",
            labels=_WATCH_LABELS,
        ),
        CounterMetricFamily(
            "llm_d_epp_kubernetes_lists", "How often all objects of a resource were listed.", labels=_WATCH_LABELS
        ),
        CounterMetricFamily(
            "llm_d_epp_kubernetes_object_versions_rejected",
            "Versions of objects that cannot be used.",
            labels=_WATCH_LABELS,
        ),
    )


_BUDGET_LABELS = ("budget",)


class BudgetMetrics(Collector):
    """Shows the budgets of a picker."""

    def __init__(self, budgets: Callable[[], Budgets]) -> None:
        self._budgets = budgets

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return _budget_families()

    def collect(self) -> Iterator[Metric]:
        """Yield a sample of each metric for each budget."""
        used, limits, refusals, timeouts = families = _budget_families()
        budgets = self._budgets()
        for each in budgets:
            used.add_metric((each.name,), each.used)
            limits.add_metric((each.name,), each.limit)
            refusals.add_metric((each.name,), each.refusals)
        timeouts.add_metric((), budgets.timeouts)
        yield from families


def _budget_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    return (
        GaugeMetricFamily(
            "llm_d_epp_budget_used",
            "What gateways take of a budget: connections, streams, pending_streams (whose request is not complete), or "
            "gathered_bytes.",
            labels=_BUDGET_LABELS,
        ),
        GaugeMetricFamily("llm_d_epp_budget_limit", "The limit of a budget.", labels=_BUDGET_LABELS),
        CounterMetricFamily(
            "llm_d_epp_budget_refusals",
            "How often a budget had no room for one more, by budget.",
            labels=_BUDGET_LABELS,
        ),
        CounterMetricFamily(
            "llm_d_epp_request_body_timeouts", "Requests refused as nothing more of them came for --body-timeout."
        ),
    )


class StreamSeries(StreamObserver):
    """Shown only where they are asked for, as in llm-d-router."""

    def __init__(self, families: Families) -> None:
        self._open = families.gauges("extproc_streams_inflight", "ext_proc streams that are open.").labels()
        self._seconds = families.histograms(
            "extproc_stream_duration_seconds", "Time for which ext_proc streams were open.", STREAM_SECONDS
        ).labels()
        self._ended = families.counters(
            "extproc_streams_total",
            "ext_proc streams that have ended, by gRPC status: OK, Canceled by the gateway, or an error.",
            ("code",),
        )

    def opened(self) -> None:
        """Count a stream."""
        self._open.inc()

    def ended(self, code: str, seconds: float) -> None:
        """Count its end."""
        self._open.dec()
        self._seconds.observe(seconds)
        self._ended.labels(code).inc()


class ConnectionSeries:
    """Counters and a gauge with the port as a label; each port is counted by one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._accepted = Counters(
            "llm_d_epp_page_connections_total",
            "Connections to the metrics port and the admin port.",
            ("port",),
            registry,
        )
        self._open = Gauges("llm_d_epp_page_connections_open", "Those that are open.", ("port",), registry)
        self._cut = Counters(
            "llm_d_epp_page_connections_cut_total",
            "Connections to the metrics port and the admin port that were closed or refused, by cause: made_room for "
            "others, no_descriptor, request_timeout, response_timeout, bad_request, unauthorized, busy, tls.",
            ("port", "cause"),
            registry,
        )

    def of(self, port: str) -> ConnectionCounts:
        """Return the counts of a port."""
        return _PortCounts(port, self._accepted, self._open, self._cut)


class _PortCounts(ConnectionCounts):
    def __init__(self, port: str, accepted: Counters, opened: Gauges, cut: Counters) -> None:
        self._port = port
        self._accepted = accepted.labels(port)
        self._open = opened.labels(port)
        self._cut = cut

    def opened(self) -> None:
        self._accepted.inc()
        self._open.inc()

    def closed(self) -> None:
        self._open.dec()

    def cut(self, cause: Cut) -> None:
        self._cut.labels(self._port, cause).inc()
