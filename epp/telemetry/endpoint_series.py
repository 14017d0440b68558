# SPDX-License-Identifier: Apache-2.0
"""Metrics of single endpoints: whether they can be reached, and their queues."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan

from epp.framework.endpoint import Endpoint
from epp.framework.records import Derivation
from epp.framework.snapshot import ANSWERS, REACHABLE, WAITING, Snapshot
from epp.telemetry.families import Computed, Families, Row


def show_endpoints(families: Families, pool_name: str, shown: Callable[[], Snapshot]) -> None:
    """Add whether each endpoint can be reached, and its queue where that is known.

    Costs the event loop nothing, however large the pool is: pages are made in a thread.
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
    """Return one slot for each name: in several namespaces there may be several."""
    return {endpoint.name: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}


def ids_of(endpoints: tuple[Endpoint | None, ...]) -> frozenset[str]:
    """Return `namespace/name` of each endpoint."""
    return frozenset(endpoint.id for endpoint in endpoints if endpoint is not None)


ENDPOINT_DERIVATIONS: Sequence[Derivation] = ((slots_by_name,), (ids_of,))
"""Values computed from all endpoints."""
