# SPDX-License-Identifier: Apache-2.0
"""Room for requests in each cluster, as the AddOnPlacementScore objects that a hub would have of an add-on."""

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

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
