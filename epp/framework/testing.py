"""Candidates made from plain lists, for tests of plugins.

candidates(waiting=[0, 4], labels=[{"zone": "a"}, {}])
"""

from collections.abc import Mapping, Sequence

import numpy as np

from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import CORE_COLUMNS, LORA, LoraState, Records, Snapshot


def candidates(
    *,
    labels: Sequence[Mapping[str, str]] = (),
    lora: Sequence[LoraState] = (),
    **columns: Sequence[float],
) -> Candidates:
    """Return as many candidates as the longest list has entries, slots 0, 1, 2 ...; columns by their names."""
    count = max(map(len, (labels, lora, *columns.values())), default=0)
    endpoints = [
        Endpoint(f"e{i}", f"10.0.{i // 250}.{i % 250 + 1}", 8000, labels=labels[i] if i < len(labels) else {})
        for i in range(count)
    ]
    known = {column.name: column for column in CORE_COLUMNS}
    unknown = sorted(set(columns) - set(known))
    if unknown:
        raise ValueError(f"no such column: {', '.join(unknown)}; known are {', '.join(known)}")
    arrays = {
        name: np.array(columns[name], dtype=np.float64) if name in columns else np.full(count, column.unknown)
        for name, column in known.items()
    }
    slots = np.arange(count, dtype=np.intp)
    snapshot = Snapshot(
        slots=slots,
        available=slots,
        endpoints=Records[Endpoint | None](tuple(endpoints)),
        columns=arrays,
        attributes={LORA.name: Records[object](tuple(lora) or (LoraState(),) * count)},
    )
    return Candidates(snapshot, slots)
