# SPDX-License-Identifier: Apache-2.0
"""Metrics of the pool and its tenants: endpoints, hardware, quotas and their alerts, and cluster scores."""

import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from math import isnan
from typing import Any, TypeVar

import numpy as np
import structlog
from prometheus_client.registry import CollectorRegistry

from epp.admission.quotas import Quotas
from epp.framework import LoraState
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.clock import Clock
from epp.framework.clusters import CLUSTER, MOST_SCORE
from epp.framework.datalayer import KnowsAccelerators, unknown_accelerators
from epp.framework.endpoint import Endpoint
from epp.framework.errors import RequestError
from epp.framework.messages import printable
from epp.framework.plugin import Plugin
from epp.framework.plugin_status import Legacy
from epp.framework.refusals import OverQuotaError, QuotaExceededError
from epp.framework.snapshot import (
    ACCELERATOR,
    ANSWERS,
    IN_FLIGHT,
    INHERITED,
    KV_USAGE,
    LORA,
    MODELS,
    REACHABLE,
    RUNNING,
    WAITING,
    Column,
    Snapshot,
)
from epp.telemetry.endpoints import count_unpriced
from epp.telemetry.families import Computed, Families, Gauges, Row, rows_of
from epp.telemetry.request_series import OTHER, shortened

SCORES_PATH = "/apis/cluster.open-cluster-management.io/v1alpha1/addonplacementscores"
"""Path of cluster scores on an API server."""
LOCAL_CLUSTER = "local-cluster"
"""Default name of the hub among its own clusters, for endpoints without a cluster name."""
_API = "cluster.open-cluster-management.io/v1alpha1"
_KIND = "AddOnPlacementScore"
_FULL_QUEUE = 5.0
"""Waiting requests at which an endpoint is full: the default of `utilization-detector`."""
_VALID_SECONDS = 120.0
_MOST_NAME = 253
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")

_T = TypeVar("_T")


class PoolSeries:
    """Gauges of a pool and of its endpoints, from the latest snapshot."""

    def __init__(self, pool_name: str, families: Families, stale_seconds: float) -> None:
        self._name = pool_name
        self._stale_seconds = stale_seconds

        def of_pool(name: str, text: str, legacy: str = "") -> Gauges:
            older = Legacy(f"inference_pool_{legacy}", ("name",)) if legacy else ""
            return families.gauges(name, text, ("name",), older)

        self._ready = of_pool("ready_endpoints", "Endpoints that can be reached.", "ready_pods")
        self._inherited = of_pool("inherited_requests", "Requests in flight that an earlier picker process sent.")
        self._age = of_pool(
            "snapshot_age_seconds",
            "Age of the oldest load report of a reachable endpoint, the oldest data that requests are routed by.",
        )
        self._spreads: dict[Column, tuple[Gauges, Gauges]] = {}
        for column, name, what in (
            (WAITING, "queue_size", "number of requests waiting at an endpoint"),
            (RUNNING, "running_requests", "number of requests running at an endpoint"),
            (KV_USAGE, "kv_cache_utilization", "KV cache usage of an endpoint, 0..1"),
        ):
            self._spreads[column] = (
                of_pool(f"average_{name}", f"Mean {what}.", f"average_{name}"),
                of_pool(f"std_dev_{name}", f"Standard deviation of the {what}; 0 for a single endpoint."),
            )
        self._shown = Snapshot()
        show_endpoints(families, pool_name, lambda: self._shown)
        show_hardware(families, pool_name, lambda: self._shown)

    def show(self, snapshot: Snapshot, now: float) -> None:
        up = snapshot.column(REACHABLE) == ANSWERS
        self._ready.labels(self._name).set(int(up[snapshot.slots].sum()))
        ages = snapshot.age_seconds(now)[snapshot.available]
        self._age.labels(self._name).set(float(np.nanmax(ages, initial=0.0)))
        self._inherited.labels(self._name).set(snapshot.column(INHERITED).sum())
        stale = snapshot.age_seconds(now)[snapshot.slots] > self._stale_seconds
        for column, (average, deviation) in self._spreads.items():
            values = snapshot.column(column)[snapshot.slots]
            is_known = ~np.isnan(values)
            known = values[is_known & ~stale]
            if not len(known) and is_known.any():
                continue
            average.labels(self._name).set(float(known.mean()) if len(known) else 0.0)
            deviation.labels(self._name).set(float(known.std(ddof=1)) if len(known) > 1 else 0.0)
        self._shown = snapshot


def served_models(snapshot: Snapshot) -> frozenset[str]:
    return snapshot.records(MODELS).derive(_union) | snapshot.records(LORA).derive(_adapters)


def _union(models: tuple[frozenset[str], ...]) -> frozenset[str]:
    return frozenset().union(*_distinct(models))


def _adapters(states: tuple[LoraState, ...]) -> frozenset[str]:
    return frozenset().union(*(one.running | one.waiting for one in _distinct(states)))


def _distinct(records: Iterable[_T]) -> Iterable[_T]:
    """Return each object once; by identity, which is cheaper than equality."""
    return {id(record): record for record in records}.values()


_MOST_TENANTS = 100
"""Tenants with their own series; clients can send any number of names."""
_MOST_ALERTS = 1000
_LINES_A_MINUTE = 20
_MINUTE = 60.0

_log = structlog.get_logger()


class QuotaSeries:
    """Metrics of quotas, written by the event loop and read by any thread."""

    def __init__(self, clock: Clock, families: Families) -> None:
        self._clock = clock
        labels = ("tenant", "resource")
        texts = {
            "llm_d_epp_quota_limit": "Limit of a quota on all requests of a tenant; memory in bytes.",
            "llm_d_epp_quota_used": "Use of a quota by all requests of a tenant; memory in bytes.",
            "llm_d_epp_quota_alert": "1 if the use of a quota has reached its alert threshold, else 0.",
        }
        self._rows: Sequence[Row] = ()
        Computed(families.registry, labels, texts, lambda: self._rows)
        self._refused = families.counters(
            "quota_refused_total", "Requests refused because of a quota, by the exceeded limit.", labels
        )
        self._counted: OrderedDict[str, set[str]] = OrderedDict()
        """The exceeded limits of each tenant with refused requests; the tenant refused last is at the end."""
        self._alerts: dict[tuple[str, str], tuple[float, float]] = {}
        """Use and limit by tenant and key."""
        self._minute_since = clock.now()
        self._lines = 0
        self._unlogged = 0

    def refused(self, error: RequestError) -> None:
        """Count a refused request if its error is about a quota."""
        if not isinstance(error, (OverQuotaError, QuotaExceededError)):
            return
        tenant, key = shortened(error.breach.tenant), error.breach.key
        if tenant not in self._counted and len(self._counted) >= _MOST_TENANTS:
            self._fold()
        self._counted.setdefault(tenant, set()).add(key)
        self._counted.move_to_end(tenant)
        self._refused.labels(tenant, key).inc()

    def alert(self, tenant: str, key: str, used: float, limit: float, *, is_over: bool) -> None:
        """Record that an alert of a limit begins or, with `is_over`, ends; log a limited number each minute."""
        if is_over:
            self._alerts.pop((tenant, key), None)
        elif len(self._alerts) < _MOST_ALERTS:
            self._alerts[tenant, key] = used, limit
        if not self._may_log():
            self._unlogged += 1
        elif is_over:
            _log.info("quota no longer almost used up", tenant=printable(tenant), limit=key)
        else:
            _log.warning("quota almost used up", tenant=printable(tenant), limit=key, used=used, most=limit)

    @property
    def alerts(self) -> Sequence[Mapping[str, object]]:
        """Limits that are almost used up, with the usage at the start of the alert; may be read in any thread."""
        return [
            {"tenant": printable(tenant), "limit": key, "used": used, "most": limit}
            for (tenant, key), (used, limit) in list(self._alerts.items())
        ]

    def show(self, quotas: Quotas, named: Iterable[str] = ()) -> None:
        """Update limits and usage; the named tenants come first, so that clients cannot displace them."""
        if not quotas.is_active:
            self._rows = ()
            return
        first = dict.fromkeys(islice(named, _MOST_TENANTS))
        lines = [line for tenant in first for line in quotas.report(tenant)]
        shown = set(first)
        for line in quotas.report(most=_MOST_TENANTS):
            if line.tenant not in first and (line.tenant in shown or len(shown) < _MOST_TENANTS):
                shown.add(line.tenant)
                lines.append(line)
        self._rows = [
            ((shortened(line.tenant), line.key), (line.limit, line.used, float(line.is_alerting))) for line in lines
        ]

    def _fold(self) -> None:
        """Move the counts of the least recently refused tenant to `other`."""
        tenant, keys = self._counted.popitem(last=False)
        for key in keys:
            self._refused.labels(OTHER, key).inc(self._refused.labels(tenant, key).value)
            self._refused.remove(tenant, key)

    def _may_log(self) -> bool:
        now = self._clock.now()
        if now - self._minute_since >= _MINUTE:
            if self._unlogged:
                _log.warning("more quota alerts began or ended", changes=self._unlogged)
            self._minute_since, self._lines, self._unlogged = now, 0, 0
        self._lines += 1
        return self._lines <= _LINES_A_MINUTE


def show_endpoints(families: Families, pool_name: str, shown: Callable[[], Snapshot]) -> None:
    """Add the reachability of each endpoint, and its queue length if it is known.

    The values are computed in the thread that renders the page, not on the event loop.
    """

    def up() -> Iterator[Row]:
        snapshot = shown()
        answers = (snapshot.column(REACHABLE) == ANSWERS).tolist()
        for endpoint, slot in snapshot.endpoints.derive(slots_by_name).items():
            yield (pool_name, endpoint), (float(answers[slot]),)

    def queues() -> Iterator[Row]:
        snapshot = shown()
        waiting = snapshot.column(WAITING).tolist()
        for endpoint, slot in snapshot.endpoints.derive(slots_by_name).items():
            if not isnan(waiting[slot]):
                yield (pool_name, endpoint), (waiting[slot],)

    registry, labels, name = families.registry, ("name", "model_server_endpoint"), "llm_d_epp_per_endpoint_queue_size"
    text = "1 for an endpoint that can be reached, 0 otherwise."
    Computed(registry, labels, {"llm_d_epp_endpoint_up": text}, up)
    Computed(registry, labels, {name: "Requests waiting at an endpoint."}, queues)
    if families.legacy:
        older = {"inference_pool_per_pod_queue_size": f"Deprecated: use {name}."}
        Computed(registry, ("name", "model_server_pod"), older, queues)


def slots_by_name(endpoints: tuple[Endpoint | None, ...]) -> Mapping[str, int]:
    """Return a slot for each name, one of several if endpoints in different namespaces share the name."""
    return {endpoint.name: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}


def ids_of(endpoints: tuple[Endpoint | None, ...]) -> frozenset[str]:
    """Return `namespace/name` of each endpoint."""
    return frozenset(endpoint.id for endpoint in endpoints if endpoint is not None)


def show_hardware(families: Families, pool_name: str, shown: Callable[[], Snapshot]) -> None:
    """Add the metrics of the hardware in the latest snapshot, by accelerator."""

    def rows() -> Iterator[Row]:
        snapshot = shown()
        tags = snapshot.records(ACCELERATOR)
        slots_of = defaultdict(list)
        names = tags.derive_objects(hardware_name)
        for slot in snapshot.available.tolist():
            slots_of[names[slot]].append(slot)
        costs = tags.derive_numbers(AcceleratorTag.cost_per_hour)
        busy = snapshot.column(IN_FLIGHT) > 0
        for name, found in slots_of.items():
            slots = np.array(found, dtype=np.intp)
            priced = slots[~np.isnan(costs[slots])]
            cost = float(costs[priced].sum()) if len(priced) else None
            busy_cost = float(costs[priced[busy[priced]]].sum()) if len(priced) else None
            yield (pool_name, name), (len(slots), cost, busy_cost)

    texts = {
        "llm_d_epp_accelerator_ready_endpoints": "Reachable endpoints by accelerator.",
        "llm_d_epp_accelerator_cost_per_hour": "US dollars per hour for the reachable endpoints of an accelerator; "
        "endpoints without a known price are left out.",
        "llm_d_epp_accelerator_busy_cost_per_hour": "US dollars per hour for those with requests in flight.",
    }
    Computed(families.registry, ("name", "accelerator"), texts, rows)
    text = "Endpoints with an unknown price, except those on CPUs."
    unpriced = {"llm_d_epp_endpoints_without_price": text}
    Computed(families.registry, ("name",), unpriced, lambda: rows_of({pool_name: count_unpriced(shown())}))


def hardware_name(tag: AcceleratorTag) -> str:
    """Return the class of an accelerator; without a class its model, and without a model its kind."""
    return tag.primary_class or tag.model or tag.kind.value


def show_unknown_accelerators(registry: CollectorRegistry, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
    """Add the number of unknown accelerators that each plugin names in its parameters."""

    def rows() -> Iterator[Row]:
        used = tuple(plugins())
        sources = [plugin for plugin in used if isinstance(plugin, KnowsAccelerators)]
        for plugin in used:
            if sources and plugin.accelerator_names:
                yield (plugin.plugin_type, plugin.name), (len(unknown_accelerators(plugin, sources)),)

    text = "Unknown AcceleratorClasses and models in the parameters of a plugin."
    Computed(registry, ("plugin_type", "plugin_name"), {"llm_d_epp_accelerator_unknown_names": text}, rows)


def cluster_scores(snapshot: Snapshot, pool: str, now: float, *, local: str = LOCAL_CLUSTER) -> Mapping[str, object]:
    """Return the scores of all clusters with endpoints as a list object; `now` is in seconds since the epoch.

    Each score is the mean over the endpoints of the cluster with a known value, from -100 for a full cluster to 100 for
    an idle one; `routingHeadroom` also has a score for each accelerator class.
    """
    statuses, tags = snapshot.records(CLUSTER).values, snapshot.records(ACCELERATOR).values
    endpoints = snapshot.endpoints.values
    room = _room(snapshot)
    members: defaultdict[str, list[int]] = defaultdict(list)
    hardware: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for slot in snapshot.slots.tolist():
        endpoint = endpoints[slot]
        name = statuses[slot].cluster or ("" if endpoint is None else endpoint.cluster) or local
        members[name].append(slot)
        hardware[name, hardware_name(tags[slot])].append(slot)
    name = f"routing-{_NOT_IN_NAMES.sub('-', pool.lower())}"[:_MOST_NAME].strip("-")
    until = datetime.fromtimestamp(now + _VALID_SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = []
    for cluster in sorted(members):
        classes = sorted((each, slots) for (of, each), slots in hardware.items() if of == cluster)
        scores = [
            *(_item(name, values[members[cluster]]) for name, values in room.items()),
            *(_item(f"routingHeadroom.{each}", room["routingHeadroom"][slots]) for each, slots in classes),
        ]
        status = {"scores": [score for score in scores if score is not None], "validUntil": until}
        metadata = {"name": name, "namespace": cluster}
        items.append({"apiVersion": _API, "kind": _KIND, "metadata": metadata, "status": status})
    return {"apiVersion": _API, "kind": f"{_KIND}List", "metadata": {}, "items": items}


def _room(snapshot: Snapshot) -> Mapping[str, Floats]:
    """Return the free share (0..1, NaN if unknown) at each slot, by name of the score."""
    answers = snapshot.column(REACHABLE) == ANSWERS
    queue = 1 - np.clip(snapshot.column(WAITING) / _FULL_QUEUE, 0, 1)
    kv_cache = 1 - np.clip(snapshot.column(KV_USAGE), 0, 1)
    return {
        "routingHeadroom": np.where(answers, np.fmin(queue, kv_cache), 0.0),
        "queueHeadroom": queue,
        "kvCacheHeadroom": kv_cache,
        "endpointsAvailable": answers.astype(np.float64),
    }


def _item(name: str, values: Floats) -> Mapping[str, object] | None:
    """Return the mean as a score; None if no value is known."""
    known = values[~np.isnan(values)]
    return {"name": name, "value": round((2 * float(known.mean()) - 1) * MOST_SCORE)} if len(known) else None
