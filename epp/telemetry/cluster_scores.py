# SPDX-License-Identifier: Apache-2.0
"""Room for requests in each cluster, as the AddOnPlacementScore objects that a hub would have of an add-on."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from epp.framework.arrays import Floats
from epp.framework.clusters import CLUSTER, MOST_SCORE
from epp.framework.snapshot import ACCELERATOR, ANSWERS, KV_USAGE, REACHABLE, WAITING, Snapshot
from epp.telemetry.hardware_series import hardware_name

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


class _Room(NamedTuple):
    """Room at each slot, 0..1; NaN for unknown."""

    queue: Floats
    kv_cache: Floats
    routing: Floats
    """The lesser of both; 0 where nothing answers."""
    available: Floats
    """1 where the endpoint answers, 0 elsewhere."""


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
            *_items(members[cluster], room),
            *(_item(f"routingHeadroom.{each}", room.routing[slots]) for each, slots in classes),
        ]
        status = {"scores": [score for score in scores if score is not None], "validUntil": until}
        metadata = {"name": name, "namespace": cluster}
        items.append({"apiVersion": _API, "kind": _KIND, "metadata": metadata, "status": status})
    return {"apiVersion": _API, "kind": f"{_KIND}List", "metadata": {}, "items": items}


def _room(snapshot: Snapshot) -> _Room:
    answers = snapshot.column(REACHABLE) == ANSWERS
    queue = 1 - np.clip(snapshot.column(WAITING) / _FULL_QUEUE, 0, 1)
    kv_cache = 1 - np.clip(snapshot.column(KV_USAGE), 0, 1)
    return _Room(queue, kv_cache, np.where(answers, np.fmin(queue, kv_cache), 0.0), answers.astype(np.float64))


def _items(slots: Sequence[int], room: _Room) -> Iterable[Mapping[str, object] | None]:
    yield _item("routingHeadroom", room.routing[slots])
    yield _item("queueHeadroom", room.queue[slots])
    yield _item("kvCacheHeadroom", room.kv_cache[slots])
    yield _item("endpointsAvailable", room.available[slots])


def _item(name: str, values: Floats) -> Mapping[str, object] | None:
    """Return the mean as a score; None where no endpoint has the number."""
    known = values[~np.isnan(values)]
    return {"name": name, "value": round((2 * float(known.mean()) - 1) * MOST_SCORE)} if len(known) else None
