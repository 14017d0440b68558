# SPDX-License-Identifier: Apache-2.0
"""State of plugins for `/debug/plugins/state`, where it has a number for each endpoint."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from epp.framework.snapshot import Snapshot

MOST_ENDPOINTS = 100


def endpoint_state(snapshot: Snapshot, numbers: Mapping[str, NDArray[np.generic]]) -> dict[str, object]:
    """Return numbers by endpoint, given one for each slot: of many endpoints, those with the largest of the first kind.

    Numbers that are unknown or infinite are null.
    """
    slots = snapshot.slots
    first = np.nan_to_num(next(iter(numbers.values()))[slots].astype(np.float64), nan=-math.inf)
    shown = slots[np.argsort(-first, kind="stable")[:MOST_ENDPOINTS]].tolist()
    endpoints = [
        {"name": endpoint.name, "address": endpoint.hostport}
        | {key: _plain(each[slot]) for key, each in numbers.items()}
        for slot in shown
        if (endpoint := snapshot.endpoints.values[slot]) is not None
    ]
    return {
        "endpoints": endpoints,
        "totalEndpoints": len(slots),
        "maxEndpoints": MOST_ENDPOINTS,
        "truncated": len(slots) > MOST_ENDPOINTS,
    }


def _plain(number: np.generic) -> float | int | None:
    value: float | int = number.item()
    return value if math.isfinite(value) else None
