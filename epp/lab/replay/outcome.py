# SPDX-License-Identifier: Apache-2.0
"""Outcome of a replay: one number per request and column."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.framework.arrays import Floats, Mask
from epp.lab.replay.fleet import Fleet
from epp.lab.replay.traffic import Arrival
from epp.lab.sim.machine import Machine

_MOST_NAMES = 10_000
_OTHERS = "(others)"
_NO = float("nan")

Numbers = NDArray[Any]


class Status(IntEnum):
    UNFINISHED = 0
    """The replay ended before the request."""
    SERVED = 1
    REFUSED = 2
    """Refused by the picker or by the server."""
    TIMED_OUT = 3
    """The client disconnected before the first token."""
    EVICTED = 4
    """Aborted in favour of a request with higher priority."""


@dataclass(frozen=True)
class Columns:
    """One number per request, in order of arrival; times in seconds, NaN if unknown."""

    at: Floats
    """Time of arrival since the start of the replay."""
    model: Numbers
    """Position in `Outcome.models`."""
    tenant: Numbers
    """Position in `Outcome.tenants`."""
    session: Numbers
    """Hash of the session id; -1 for none."""
    server: Numbers
    """Position in `Outcome.servers`; -1 for none."""
    status: Numbers
    """A `Status`."""
    queued: Floats
    """Time in the queues of the picker."""
    ttft: Floats
    """Time to the first token."""
    total: Floats
    """Time to the last token."""
    prompt_tokens: Numbers
    output_tokens: Numbers
    cached_tokens: Numbers
    """Prompt tokens that the engine found in its cache."""
    ttft_target: Floats
    tpot_target: Floats
    regret: Floats
    """Expected seconds to the end of the request, minus those on the best server; see `Machine.seconds_to_end`."""

    @property
    def tpot(self) -> Floats:
        """Mean time between two tokens; NaN for answers of one token."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Floats = np.where(
                self.output_tokens > 1, (self.total - self.ttft) / (self.output_tokens - 1.0), np.nan
            )
        return found


@dataclass(frozen=True)
class Timeline:
    """Load of each server (second axis) at regular times (first axis)."""

    times: Floats
    running: Floats
    waiting: Floats
    kv_usage: Floats


@dataclass(frozen=True)
class Outcome:
    """One replay, or several with different seeds."""

    seconds: float
    """Time from the first arrival to the last."""
    servers: tuple[str, ...]
    classes: tuple[str, ...]
    """Accelerator class of each server."""
    models: tuple[str, ...]
    tenants: tuple[str, ...]
    columns: Columns
    dollars: Floats
    """Cost of each request: its share of the cost of its server's busy time; NaN without a price."""
    busy_seconds: Floats
    """Busy time of each server."""
    dollars_of_servers: Floats
    """Cost of the busy time of each server; NaN without a price."""
    seed: Numbers
    """Position of each request's seed among those of all replays."""
    timeline: Timeline
    adapter_loads: int = 0
    preemptions: int = 0
    stopped: bool = False
    """Whether `progress` stopped the replay."""

    def __len__(self) -> int:
        return len(self.columns.at)

    def take(self, which: Mask | NDArray[np.intp]) -> "Outcome":
        """Return the outcome of some of the requests."""
        columns = Columns(**{name: getattr(self.columns, name)[which] for name in Columns.__dataclass_fields__})
        return replace(self, columns=columns, dollars=self.dollars[which], seed=self.seed[which])


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """Merge replays of one trace and configuration with different seeds."""
    first = outcomes[0]
    models = tuple(dict.fromkeys(name for each in outcomes for name in each.models))
    tenants = tuple(dict.fromkeys(name for each in outcomes for name in each.tenants))
    columns = {
        name: np.concatenate([getattr(each.columns, name) for each in outcomes])
        for name in Columns.__dataclass_fields__
    }
    for name, names in (("model", models), ("tenant", tenants)):
        columns[name] = np.concatenate(
            [_renumbered(getattr(each.columns, name), getattr(each, f"{name}s"), names) for each in outcomes]
        )
    return replace(
        first,
        models=models,
        tenants=tenants,
        columns=Columns(**columns),
        dollars=np.concatenate([each.dollars for each in outcomes]),
        busy_seconds=np.sum([each.busy_seconds for each in outcomes], axis=0),
        dollars_of_servers=np.sum([each.dollars_of_servers for each in outcomes], axis=0),
        seed=np.concatenate([np.full(len(each), number) for number, each in enumerate(outcomes)]),
        adapter_loads=sum(each.adapter_loads for each in outcomes),
        preemptions=sum(each.preemptions for each in outcomes),
        stopped=any(each.stopped for each in outcomes),
    )


def _renumbered(column: Numbers, names: Sequence[str], wanted: Sequence[str]) -> Numbers:
    places = {name: place for place, name in enumerate(wanted)}
    return np.array([places[name] for name in names], dtype=np.int64)[column]


def _place(places: dict[str, int], name: str) -> int:
    if name not in places and len(places) >= _MOST_NAMES:
        name = _OTHERS
    return places.setdefault(name, len(places))


class Recorder:
    """Builds the columns during a replay; requests are numbered in order of arrival."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.at, self.queued, self.ttft, self.total = (array("d") for _ in range(4))
        self.ttft_target, self.tpot_target, self.regret = (array("d") for _ in range(3))
        self.model, self.tenant, self.server, self.status = (array("i") for _ in range(4))
        self.prompt_tokens, self.output_tokens, self.cached_tokens, self.session = (array("q") for _ in range(4))
        self._models: dict[str, int] = {}
        self._tenants: dict[str, int] = {}
        self._times = array("d")
        self._load: tuple[array[float], array[float], array[float]] = (array("f"), array("f"), array("f"))

    def arrived(self, arrival: Arrival) -> int:
        number = len(self.at)
        self.at.append(arrival.at)
        self.model.append(_place(self._models, arrival.model))
        self.tenant.append(_place(self._tenants, arrival.tenant))
        self.session.append(xxhash.xxh3_64_intdigest(arrival.session.encode()) >> 1 if arrival.session else -1)
        self.server.append(-1)
        self.status.append(Status.UNFINISHED)
        self.queued.append(0.0)
        for column in (self.ttft, self.total, self.regret):
            column.append(_NO)
        self.prompt_tokens.append(arrival.prompt_tokens)
        self.output_tokens.append(arrival.output_tokens)
        self.cached_tokens.append(0)
        self.ttft_target.append(_NO if arrival.ttft_target is None else arrival.ttft_target)
        self.tpot_target.append(_NO if arrival.tpot_target is None else arrival.tpot_target)
        return number

    def load(self, time: float, gauges: Sequence[tuple[int, int, float]]) -> None:
        self._times.append(time)
        for column, values in zip(self._load, zip(*gauges, strict=True), strict=True):
            column.extend(values)

    def outcome(self, engines: Sequence[Machine], *, stopped: bool) -> Outcome:
        """Return the outcome so far; `engines` has the engine of each server."""
        columns = Columns(**{name: np.array(getattr(self, name)) for name in Columns.__dataclass_fields__})
        servers = self._fleet.servers
        busy = np.array([engine.busy_seconds for engine in engines], dtype=np.float64)
        hourly = [np.nan if server.dollars_per_hour is None else server.dollars_per_hour for server in servers]
        dollars = busy * np.array(hourly) / 3600
        shape = len(self._times), len(servers)
        running, waiting, kv_usage = (np.array(each, dtype=np.float64).reshape(shape) for each in self._load)
        return Outcome(
            seconds=float(columns.at[-1]) if len(columns.at) else 0.0,
            servers=tuple(server.endpoint.name for server in servers),
            classes=tuple(server.accelerator_class for server in servers),
            models=tuple(self._models),
            tenants=tuple(self._tenants),
            columns=columns,
            dollars=np.where(columns.server >= 0, _shares(columns, self._fleet) * dollars[columns.server], 0.0),
            busy_seconds=busy,
            dollars_of_servers=dollars,
            seed=np.zeros(len(columns.at), dtype=np.int64),
            timeline=Timeline(np.array(self._times), running, waiting, kv_usage),
            adapter_loads=sum(engine.adapter_loads for engine in engines),
            preemptions=sum(engine.preemptions for engine in engines),
            stopped=stopped,
        )


def _shares(columns: Columns, fleet: Fleet) -> Floats:
    """Return the share of each request in the work of its server; the work is its duration on an idle server."""
    sent = columns.server >= 0
    place = np.where(sent, columns.server, 0)
    prefill = np.array([server.profile.prefill_tokens_per_second for server in fleet.servers])
    step = np.array([server.profile.seconds_per_output_token for server in fleet.servers])
    answered = np.where(np.isnan(columns.ttft), 0, columns.output_tokens)
    uncached = np.maximum(columns.prompt_tokens - columns.cached_tokens, 0)
    work = np.where(sent, uncached / prefill[place] + answered * step[place], 0.0)
    total = np.bincount(place, weights=work, minlength=len(fleet.servers))[place]
    return np.divide(work, total, out=np.zeros(len(work)), where=total > 0)
