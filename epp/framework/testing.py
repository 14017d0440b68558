"""Candidates made from plain lists, and the rates of their slots, for tests of plugins.

candidates(waiting=[0, 4], labels=[{"zone": "a"}, {}])
endpoint_rates([8000, 500])
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.rates import EndpointRates
from epp.framework.snapshot import CORE_COLUMNS, LORA, Attribute, LoraState, Records, Snapshot


def candidates(
    *,
    labels: Sequence[Mapping[str, str]] = (),
    lora: Sequence[LoraState] = (),
    records: Mapping[Attribute[Any], Sequence[object]] | None = None,
    reported: Mapping[str, Sequence[float]] | None = None,
    **columns: Sequence[float],
) -> Candidates:
    """Return as many candidates as the longest list has entries, slots 0, 1, 2 ...

    Core columns go by their names; `reported` are columns beyond those, `records` other attributes than LoRA.
    """
    reported, records = reported or {}, records or {}
    count = max(map(len, (labels, lora, *columns.values(), *reported.values(), *records.values())), default=0)
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
    arrays |= {name: np.array(values, dtype=np.float64) for name, values in reported.items()}
    attributes = {attribute.name: Records[object](tuple(values)) for attribute, values in records.items()}
    slots = np.arange(count, dtype=np.intp)
    snapshot = Snapshot(
        slots=slots,
        available=slots,
        endpoints=Records[Endpoint | None](tuple(endpoints)),
        columns=arrays,
        attributes={LORA.name: Records[object](tuple(lora) or (LoraState(),) * count), **attributes},
    )
    return Candidates(snapshot, slots)


def endpoint_rates(
    prefill: Sequence[float],
    *,
    itl_base: Sequence[float] = (),
    itl_per_request: Sequence[float] = (),
    ttft_base: Sequence[float] = (),
    ttft_per_token: Sequence[float] = (),
) -> EndpointRates:
    """Return rates of slots 0, 1, 2 ...: tokens a second, and seconds; tokens are generated in no time unless said."""
    count = len(prefill)

    def column(values: Sequence[float], otherwise: float) -> Floats:
        return np.array(values or [otherwise] * count, dtype=np.float64)

    return EndpointRates(
        prefill_tokens_per_second=column(prefill, nan),
        itl_base_seconds=column(itl_base, 0.0),
        itl_seconds_per_request=column(itl_per_request, 0.0),
        ttft_base_seconds=column(ttft_base, nan),
        ttft_seconds_per_token=column(ttft_per_token, nan),
        kinds=np.zeros(count, dtype=np.intp),
        sources=(("default", "default"),),
        prefill_samples=np.zeros(count, dtype=np.intp),
        itl_samples=np.zeros(count, dtype=np.intp),
    )
