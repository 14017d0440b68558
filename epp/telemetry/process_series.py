# SPDX-License-Identifier: Apache-2.0
"""Metrics of the picker itself: build, configuration, leadership, inputs, watches, budgets and connections."""

import json
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from epp.extproc.budgets import Budgets
from epp.extproc.open_streams import StreamObserver
from epp.framework.plugin_status import HasInputs
from epp.kube.cluster import Cluster
from epp.kube.watched import Watched, WatchState
from epp.pool.discovery.several import SourceState
from epp.runtime.http_connections import ConnectionCounts, Cut
from epp.telemetry.families import EXTENSION, Computed, Families, Row, rows_of

_PACKAGE = "inference-epp"
STREAM_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)
_COMMIT = "EPP_COMMIT"
"""Environment variable with the commit of an image."""
_NETWORK = Path("/proc/self/net/netstat")


def show_build(families: Families, transport: str, lost_log_lines: Callable[[], int]) -> None:
    info = families.gauges(
        "info",
        "1, with the version and the commit of this program; the commit is empty if it is unknown.",
        ("commit", "build_ref"),
        EXTENSION,
    )
    info.labels(*build()).set(1)
    carrier = families.gauges("extproc_transport", "1 for the --transport that carries ext_proc.", ("transport",))
    carrier.labels(transport).set(1)
    lost = {"llm_d_epp_log_lines_lost_total": "Log lines that could not be written."}
    Computed(families.registry, (), lost, lambda: [((), (lost_log_lines(),))])


def build() -> tuple[str, str]:
    """Return the commit (empty if unknown) and the version."""
    try:
        installed = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        return os.environ.get(_COMMIT, ""), ""
    origin = installed.read_text("direct_url.json")  # has the commit of an installation from a repository
    source = json.loads(origin).get("vcs_info", {}) if origin else {}
    return os.environ.get(_COMMIT) or source.get("commit_id", ""), f"v{installed.version}"


def show_process(registry: CollectorRegistry) -> None:
    """Add the standard process metrics of Prometheus clients: CPU, memory, descriptors, network."""
    ProcessCollector(registry=registry)
    texts = {
        "process_virtual_memory_max_bytes": "Limit of virtual memory in bytes; 2^64 for none.",
        "process_network_receive_bytes_total": "Bytes received in the network namespace of the process.",
        "process_network_transmit_bytes_total": "Bytes sent in the network namespace of the process.",
    }

    def rows() -> Iterator[Row]:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        traffic = _network_traffic()
        most = 2**64 - 1 if limit == resource.RLIM_INFINITY else limit  # like Go's client without a limit
        yield (), (most, traffic.get("InOctets"), traffic.get("OutOctets"))

    Computed(registry, (), texts, rows)


def _network_traffic() -> Mapping[str, int]:
    """Return the IP counters of this network namespace; none if there is no such file."""
    try:
        lines = [line.split()[1:] for line in _NETWORK.read_text().splitlines() if line.startswith("IpExt:")]
        return {name: int(value) for name, value in zip(*lines, strict=False)}
    except (OSError, ValueError):
        return {}


def show_leader(registry: CollectorRegistry, lease: str, *, is_leader: Callable[[], bool]) -> None:
    text = "1 while this replica holds the lease of that name, 0 while it is on standby."
    Computed(registry, ("name",), {"leader_election_master_status": text}, lambda: rows_of({lease: float(is_leader())}))


def show_inputs(registry: CollectorRegistry, owners: Callable[[], Iterable[HasInputs]]) -> None:
    def files() -> Iterator[Row]:
        for owner in owners():
            inputs = owner.inputs
            for file, rejected in inputs.rejected.items():
                problems = [each for each in inputs.problems if each.file == file]
                yield (owner.name, file), (len(problems), sum(each.kept for each in problems), rejected)

    def ignored() -> Iterator[Row]:
        for owner in owners():
            for kind, count in Counter(each.kind for each in owner.inputs.ignored).items():
                yield (owner.name, kind), (count,)

    texts = {
        "llm_d_epp_input_problems": "Objects in a file whose newest version is not in effect; 1 if that is the whole "
        "file.",
        "llm_d_epp_input_objects_kept": "Objects in effect in an earlier version, because the newest one cannot be "
        "used or the file is gone.",
        "llm_d_epp_input_versions_rejected_total": "Versions of a file, or of its objects, that cannot be used.",
    }
    Computed(registry, ("plugin_name", "file"), texts, files)
    text = "Impossible values that are ignored, by kind of object."
    Computed(registry, ("plugin_name", "kind"), {"llm_d_epp_input_values_ignored": text}, ignored)


def show_sources(registry: CollectorRegistry, states: Callable[[], Iterable[SourceState]]) -> None:
    def rows() -> Iterator[Row]:
        for state in states():
            yield (state.name,), (state.endpoints, state.hidden, float(bool(state.trouble)), state.stale_seconds)

    texts = {
        "llm_d_epp_endpoint_source_endpoints": "Endpoints in the pool, by source.",
        "llm_d_epp_endpoint_source_hidden": "Endpoints that are not in the pool, because an earlier source has an "
        "endpoint with the same address or name.",
        "llm_d_epp_endpoint_source_in_trouble": "1 while the endpoints of a source may be out of date.",
        "llm_d_epp_endpoint_source_stale_seconds": "Time for which the endpoints of a source may be out of date.",
    }
    Computed(registry, ("source",), texts, rows)


def show_watches(registry: CollectorRegistry, watches: Callable[[], Iterable[Watched[Any]]]) -> None:
    def rows() -> Iterable[Row]:
        found: dict[tuple[str, str], Sequence[float]] = {}
        for watch in watches():
            values = (
                float(watch.state is WatchState.CURRENT),
                watch.stale_seconds,
                len(watch.objects),
                len(watch.problems),
                watch.lists,
                watch.rejected,
            )
            # While a pool changes its selector, two watches have the same labels.
            found.setdefault((watch.collection.resource.title, watch.collection.namespace), values)
        return found.items()

    texts = {
        "llm_d_epp_kubernetes_watch_current": "1 while the objects of a resource are kept up to date, 0 while they "
        "cannot be read.",
        "llm_d_epp_kubernetes_watch_stale_seconds": "Time since the objects of a resource could last be read; 0 while "
        "they are kept up to date.",
        "llm_d_epp_kubernetes_objects": "Objects of a resource that are in effect.",
        "llm_d_epp_kubernetes_object_problems": "Objects whose newest version cannot be used; at most 100 are counted.",
        "llm_d_epp_kubernetes_lists_total": "Number of times that all objects of a resource were listed.",
        "llm_d_epp_kubernetes_object_versions_rejected_total": "Versions of objects that cannot be used.",
    }
    Computed(registry, ("resource", "namespace"), texts, rows)


def show_hubs(registry: CollectorRegistry, hubs: Callable[[], Iterable[Cluster]]) -> None:
    def rows() -> Iterator[Row]:
        for hub in hubs():
            watches = hub.watches
            unread = sum(watch.state in {WatchState.STALE, WatchState.FORBIDDEN} for watch in watches)
            stale = max((watch.stale_seconds for watch in watches), default=0.0)
            yield (hub.api.server,), (unread, stale, sum(len(watch.objects) for watch in watches))

    texts = {
        "llm_d_epp_hub_kinds_unread": "Kinds of objects of a hub that cannot be read now.",
        "llm_d_epp_hub_stale_seconds": "Longest time since a kind of objects of a hub could be read; 0 while all are "
        "kept up to date.",
        "llm_d_epp_hub_objects": "Objects of a hub that are in effect.",
    }
    Computed(registry, ("hub",), texts, rows)


def show_extproc(
    registry: CollectorRegistry, budgets: Callable[[], Budgets], protocol_errors: Callable[[], Mapping[str, int]]
) -> None:
    texts = {
        "llm_d_epp_budget_used": "Use of a budget by gateways: connections, streams, pending_streams (with an "
        "incomplete request), or gathered_bytes.",
        "llm_d_epp_budget_limit": "Limit of a budget.",
        "llm_d_epp_budget_refusals_total": "Number of times that a budget was used up, by budget.",
    }

    def rows() -> Iterator[Row]:
        for each in budgets():
            yield (each.name,), (each.used, each.limit, each.refusals)

    Computed(registry, ("budget",), texts, rows)
    text = "Requests refused because no more of their body arrived for --body-timeout."
    Computed(registry, (), {"llm_d_epp_request_body_timeouts_total": text}, lambda: [((), (budgets().timeouts,))])
    text = "Streams ended because the gateway violated the protocol, by kind of error."
    errors = {"llm_d_epp_extproc_protocol_errors_total": text}
    Computed(registry, ("kind",), errors, lambda: rows_of(protocol_errors()))


class StreamSeries(StreamObserver):
    """Metrics of ext_proc streams; optional, as in llm-d-router."""

    def __init__(self, families: Families) -> None:
        self._open = families.gauges("extproc_streams_inflight", "ext_proc streams that are open.").labels()
        self._seconds = families.histograms(
            "extproc_stream_duration_seconds", "Duration of ext_proc streams.", STREAM_SECONDS
        ).labels()
        self._ended = families.counters(
            "extproc_streams_total",
            "ext_proc streams that have ended, by gRPC status: OK, Canceled by the gateway, or an error.",
            ("code",),
        )

    def opened(self) -> None:
        self._open.inc()

    def ended(self, code: str, seconds: float) -> None:
        self._open.dec()
        self._seconds.observe(seconds)
        self._ended.labels(code).inc()


class ConnectionSeries:
    """Connection metrics by port; a single thread counts for each port."""

    def __init__(self, registry: CollectorRegistry) -> None:
        families = Families(registry)
        self.accepted = families.counters(
            "page_connections_total", "Connections to the metrics port and the admin port.", ("port",)
        )
        self.open = families.gauges("page_connections_open", "Open connections to these ports.", ("port",))
        self.cut = families.counters(
            "page_connections_cut_total",
            "Connections to these ports that were closed or refused, by cause: made_room for others, no_descriptor, "
            "request_timeout, response_timeout, bad_request, unauthorized, busy, tls.",
            ("port", "cause"),
        )

    def of(self, port: str) -> ConnectionCounts:
        return _PortCounts(port, self)


class _PortCounts(ConnectionCounts):
    def __init__(self, port: str, series: ConnectionSeries) -> None:
        self._port = port
        self._accepted = series.accepted.labels(port)
        self._open = series.open.labels(port)
        self._cut = series.cut

    def opened(self) -> None:
        self._accepted.inc()
        self._open.inc()

    def closed(self) -> None:
        self._open.dec()

    def cut(self, cause: Cut) -> None:
        self._cut.labels(self._port, cause).inc()
