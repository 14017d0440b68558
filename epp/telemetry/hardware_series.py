# SPDX-License-Identifier: Apache-2.0
"""Metrics of hardware and of clusters."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from prometheus_client.registry import CollectorRegistry

from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats
from epp.framework.clusters import CLUSTER, MOST_SCORE
from epp.framework.datalayer import KnowsAccelerators, unknown_accelerators
from epp.framework.plugin import Plugin
from epp.framework.records import Derivation
from epp.framework.snapshot import ACCELERATOR, ANSWERS, IN_FLIGHT, KV_USAGE, REACHABLE, WAITING, Snapshot
from epp.telemetry.endpoints import PRICE_DERIVATIONS, count_unpriced
from epp.telemetry.families import Computed, Families, Row, rows_of

SCORES_PATH = "/apis/cluster.open-cluster-management.io/v1alpha1/addonplacementscores"
"""Where an API server has them."""
LOCAL_CLUSTER = "local-cluster"
"""Name of a hub among its own clusters: that of endpoints of no named cluster, unless the request names another."""
_API = "cluster.open-cluster-management.io/v1alpha1"
_KIND = "AddOnPlacementScore"
_FULL_QUEUE = 5.0
"""Waiting requests at which an endpoint has no room: the default of `utilization-detector`."""
_VALID_SECONDS = 120.0
_MOST_NAME = 253
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def show_hardware(families: Families, pool_name: str, shown: Callable[[], Snapshot]) -> None:
    """Add the metrics of the hardware of the snapshot that is shown, by accelerator."""

    def rows() -> Iterator[Row]:
        snapshot = shown()
        tags = snapshot.records(ACCELERATOR)
        slots_by_name = defaultdict(list)
        names = tags.derive_objects(hardware_name)
        for slot in snapshot.available.tolist():
            slots_by_name[names[slot]].append(slot)
        costs = tags.derive_numbers(AcceleratorTag.cost_per_hour)
        busy = snapshot.column(IN_FLIGHT) > 0
        for name, found in slots_by_name.items():
            slots = np.array(found, dtype=np.intp)
            priced = slots[~np.isnan(costs[slots])]
            cost = float(costs[priced].sum()) if len(priced) else None
            busy_cost = float(costs[priced[busy[priced]]].sum()) if len(priced) else None
            yield (pool_name, name), (len(slots), cost, busy_cost)

    texts = {
        "llm_d_epp_accelerator_ready_endpoints": "Reachable endpoints by accelerator.",
        "llm_d_epp_accelerator_cost_per_hour": "US dollars an hour for the reachable endpoints with a known price, by "
        "accelerator.",
        "llm_d_epp_accelerator_busy_cost_per_hour": "Of these dollars, those for endpoints that have requests of this "
        "picker in flight.",
    }
    Computed(families.registry, ("name", "accelerator"), texts, rows)
    text = "Endpoints with accelerators, or of unknown hardware, whose price is unknown."
    unpriced = {"llm_d_epp_endpoints_without_price": text}
    Computed(families.registry, ("name",), unpriced, lambda: rows_of({pool_name: count_unpriced(shown())}))


def hardware_name(tag: AcceleratorTag) -> str:
    """Return the class of an accelerator; its model, or at least its kind, where it has none."""
    return tag.primary_class or tag.model or tag.kind.value


HARDWARE_DERIVATIONS: Sequence[Derivation] = (
    *PRICE_DERIVATIONS,
    (np.object_, hardware_name),
    (np.float64, AcceleratorTag.cost_per_hour),
)
"""Values computed from the tag of each endpoint."""


def show_unknown_accelerators(registry: CollectorRegistry, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
    """Add the number of unknown names of each plugin that names any accelerators."""

    def rows() -> Iterator[Row]:
        used = tuple(plugins())
        sources = [plugin for plugin in used if isinstance(plugin, KnowsAccelerators)]
        for plugin in used:
            if sources and plugin.accelerator_names:
                yield (plugin.plugin_type, plugin.name), (len(unknown_accelerators(plugin, sources)),)

    text = "AcceleratorClasses, or models, that a plugin names in its parameters and that do not exist."
    Computed(registry, ("plugin_type", "plugin_name"), {"llm_d_epp_accelerator_unknown_names": text}, rows)


def cluster_scores(snapshot: Snapshot, pool: str, now: float, *, local: str = LOCAL_CLUSTER) -> Mapping[str, object]:
    """Return the scores of all clusters with endpoints, as a list of objects; `now` in seconds since the epoch.

    Each item is the mean over the endpoints of the cluster that have the number, -100 for no room and 100 for an idle
    cluster; `routingHeadroom` also for each class of accelerators.
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
    """Return the room at each slot by the name of a score, 0..1; NaN for unknown."""
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
    """Return the mean as a score; None where no endpoint has the number."""
    known = values[~np.isnan(values)]
    return {"name": name, "value": round((2 * float(known.mean()) - 1) * MOST_SCORE)} if len(known) else None
