# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of plugins: candidates and rates from plain lists, runs of profiles and configurations.

candidates(waiting=[0, 4], labels=[{"zone": "a"}, {}])
endpoint_rates([8000, 500])
run_profile([ZoneFilter(), (QueueScorer(), 2)], candidates(waiting=[0, 4])).picked
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, read_only
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, ManualClock
from epp.framework.endpoint import Endpoint
from epp.framework.expected_times import EndpointRates
from epp.framework.plugin import Plugin
from epp.framework.records import Records
from epp.framework.request import Request
from epp.framework.result import SchedulingResult
from epp.framework.roles import Scorer
from epp.framework.snapshot import ACCELERATOR, CORE_COLUMNS, LORA, Attribute, LoraState, Snapshot


def candidates(
    *,
    labels: Sequence[Mapping[str, str]] = (),
    lora: Sequence[LoraState] = (),
    accelerators: Sequence[AcceleratorTag] = (),
    records: Mapping[Attribute[Any], Sequence[object]] | None = None,
    reported: Mapping[str, Sequence[float]] | None = None,
    **columns: Sequence[float],
) -> Candidates:
    """Return a candidate for each entry of the longest list: slots 0, 1, 2 ..., named e0, e1, e2 ...

    `columns` are core columns by name, `reported` other columns, and `records` other attributes. The arrays are
    read-only, as in a running picker.
    """
    reported, records = reported or {}, dict(records or {})
    if accelerators:
        records[ACCELERATOR] = accelerators
    count = max(map(len, (labels, lora, *columns.values(), *reported.values(), *records.values())), default=0)
    endpoints = [
        Endpoint(f"e{i}", f"10.0.{i // 250}.{i % 250 + 1}", 8000, labels=labels[i] if i < len(labels) else {})
        for i in range(count)
    ]
    known = {column.name: column for column in CORE_COLUMNS}
    unknown = sorted(set(columns) - set(known))
    if unknown:
        raise ValueError(f"unknown column: {', '.join(unknown)}; known are {', '.join(known)}")
    arrays = {
        name: np.array(columns[name], dtype=np.float64) if name in columns else np.full(count, column.unknown)
        for name, column in known.items()
    }
    arrays |= {name: np.array(values, dtype=np.float64) for name, values in reported.items()}
    for array in arrays.values():
        read_only(array)
    attributes = {attribute.name: Records[object](tuple(values)) for attribute, values in records.items()}
    slots = np.arange(count, dtype=np.intp)
    snapshot = Snapshot(
        slots=slots,
        available=slots,
        endpoints=Records[Endpoint | None](tuple(endpoints)),
        columns=MappingProxyType(arrays),
        attributes=MappingProxyType({LORA.name: Records[object](tuple(lora) or (LoraState(),) * count), **attributes}),
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
    """Return rates of slots 0, 1, 2 ... in tokens per second and seconds; by default, generation takes no time."""
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
        sources=(("given", "given"),),
        prefill_samples=np.zeros(count, dtype=np.intp),
        itl_samples=np.zeros(count, dtype=np.intp),
    )


Member: TypeAlias = Plugin[Any] | tuple[Scorer[Any], float]
"""A plugin of a profile; a scorer may have a weight, otherwise its default weight applies."""


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """Results of one profile by stage, with endpoints by name."""

    kept: Mapping[str, tuple[str, ...]]
    """Endpoints that remain after each filter, by name of the filter, in order."""
    scores: Mapping[str, Mapping[str, float]]
    """Scores in [0, 1] before the weight, by scorer and endpoint."""
    totals: Mapping[str, float]
    """Sum of weight times score, by endpoint."""
    picked: tuple[str, ...]
    """Name of the target, then those of its fallbacks."""
    problems: Mapping[str, str]
    """Problems of plugins whose results were dropped or changed, by plugin name."""


def run_profile(
    profile: str | Sequence[Member],
    pool: Candidates,
    request: Request | None = None,
    *,
    name: str = "",
    plugins: Sequence[type[Plugin[Any]]] = (),
    clock: Clock | None = None,
) -> ProfileRun:
    """Run header hooks and producers, then filters, scorers and the picker of one profile, as for a real request.

    `profile` is a list of plugins, or the text of a configuration file. For a text, `name` is one of its profiles, by
    default the only one, and `plugins` are classes that it uses and that are not installed. The default picker is
    `max-score-picker`. Raises the RequestError of a failed profile, and ConfigurationError for an invalid text.
    """
    from epp.config.made_up_runs import profile_run  # noqa: PLC0415  only tests need more than the framework

    return profile_run(
        profile, pool, request or Request("test"), name=name, plugins=plugins, clock=clock or ManualClock()
    )


def run_scheduling(
    config: str,
    pool: Candidates,
    request: Request | None = None,
    *,
    plugins: Sequence[type[Plugin[Any]]] = (),
    clock: Clock | None = None,
) -> SchedulingResult:
    """Run a whole configuration: the profiles that its profile picker chooses for the request, and the aggregator.

    Arguments and errors are those of `run_profile`. Also raises ValueError for headers that the aggregator does not
    declare.
    """
    from epp.config.made_up_runs import scheduling_run  # noqa: PLC0415  the same

    return scheduling_run(config, pool, request or Request("test"), plugins, clock or ManualClock())
