# SPDX-License-Identifier: Apache-2.0
"""Replay of recorded decisions by a configuration, on the recorded state of the endpoints."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from epp.config import Assembly
from epp.explain.record import DecisionRecord, ProfileRun
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.arrays import Floats, Mask, read_only
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.errors import RequestError
from epp.framework.headers import OBJECTIVE, PATHS
from epp.framework.plugin import Guard, Plugin, SchedulingObserver
from epp.framework.quotas import TENANT, Tenant
from epp.framework.records import Records
from epp.framework.request import (
    AGENT_IDENTITY,
    BYTES_PER_TOKEN,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    SESSION_ID,
    DataKey,
    Headers,
    Request,
    RequestBody,
)
from epp.framework.result import SchedulingResult
from epp.framework.roles import Filter, Producer, Scorer
from epp.framework.snapshot import (
    ACCELERATOR,
    CORE_COLUMNS,
    IN_FLIGHT,
    INHERITED,
    KV_USAGE,
    LAST_PICKED,
    METRICS_AT,
    RUNNING,
    WAITING,
    Snapshot,
)
from epp.routing.scheduling.profile import Profile

_DROPPED, _KEPT = 0.0, 1.0


class Recalled:
    """Recorded results of each plugin, by slot."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Floats] = {}
        self._anywhere: dict[str, Floats] = {}

    def use(self, record: DecisionRecord, slots: Mapping[str, int]) -> None:
        """Use the results of a record, except for those of failed plugins."""
        self._of.clear()
        self._anywhere.clear()
        count = len(slots)
        for run in record.profiles:
            for step in run.filters:
                if not step.problem:
                    verdicts = self._values(run.name, step.plugin, count)
                    verdicts[[slots[name] for name in step.kept if name in slots]] = _KEPT
                    verdicts[[slots[drop.endpoint] for drop in step.dropped]] = _DROPPED
                    verdicts[[slots[each.endpoint] for each in run.candidates]] = _KEPT
            for number, scorer in enumerate(run.scorers):
                if not scorer.problem:
                    scores = self._values(run.name, scorer.plugin, count)
                    for candidate in run.candidates:
                        scores[slots[candidate.endpoint]] = candidate.scores[number]

    def of(self, plugin: Plugin[Any], candidates: Candidates, call: Callable[[], Floats | Mask]) -> Floats:
        """Return the results of a plugin in the profile, or else in another one; `call` computes missing ones."""
        found = self._of.get((candidates.profile, plugin.name))
        if found is None:
            found = self._anywhere.get(plugin.name)
        if found is None:
            return np.asarray(call(), dtype=np.float64)
        found = found[candidates.slots]
        missing = np.isnan(found)
        return np.where(missing, call(), found) if missing.any() else found

    def _values(self, profile: str, plugin: str, count: int) -> Floats:
        values = self._of[profile, plugin] = np.full(count, np.nan)
        self._anywhere.setdefault(plugin, values)
        return values


class RecordedFilter(Filter[Any]):
    plugin_type = "recorded-filter"

    def __init__(self, real: Filter[Any], recalled: Recalled) -> None:
        super().__init__(real.parameters, name=real.name, clock=real.clock)
        self.may_empty, self.drops = real.may_empty, real.drops
        self._real = real
        self._recalled = recalled

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        kept: Mask = self._recalled.of(self, candidates, lambda: self._real.filter(request, candidates)) == _KEPT
        return kept


class RecordedScorer(Scorer[Any]):
    plugin_type = "recorded-scorer"

    def __init__(self, real: Scorer[Any], recalled: Recalled) -> None:
        super().__init__(real.parameters, name=real.name, clock=real.clock)
        self._real = real
        self._recalled = recalled

    def score(self, request: Request, candidates: Candidates) -> Floats:
        return self._recalled.of(self, candidates, lambda: self._real.score(request, candidates))


_KNOWN = (WAITING, RUNNING, KV_USAGE, IN_FLIGHT)
_DATA = (*_KNOWN, LAST_PICKED, METRICS_AT, ACCELERATOR, TENANT, PROMPT_TOKENS, INHERITED)
RECORDED = frozenset(datum.name for datum in _DATA)
"""Names of data in records, and of tokens, which are estimated from the size of the body."""
_OF_PROMPTS = frozenset(key.name for key in (PREFIX_MATCH, SESSION_ID, AGENT_IDENTITY))
"""Names of data that producers compute from prompts and headers, which records do not have."""
_PORT = 1
_FIRST_ADDRESS = 0x0A000001
"""10.0.0.1, the first of the made-up addresses: records have only names of endpoints."""


class Fleet:
    """The endpoints of all records, with a slot for each, in the order of the pool if it is known."""

    def __init__(self, records: Sequence[DecisionRecord]) -> None:
        self.slots: dict[str, int] = {}
        self.endpoints: list[Endpoint] = []
        self.tags: list[AcceleratorTag] = []
        for name in _in_order(records):
            self._slot(name)
        for record in records:
            for run in record.profiles:
                self._add(run)
            if record.pick is not None and record.pick.accelerator_model and record.pick.endpoint in self.slots:
                slot, model = self.slots[record.pick.endpoint], record.pick.accelerator_model
                tag = self.tags[slot]
                if not tag.model:
                    known = AcceleratorTag(classes=tag.classes, model=model, count=1, cost=tag.cost)
                    self.tags[slot] = known.located()

    def _add(self, run: ProfileRun) -> None:
        for name in endpoints_of(run):
            self._slot(name)
        for candidate in run.candidates:
            slot = self._slot(candidate.endpoint)
            if not self.tags[slot].classes and (candidate.accelerator or candidate.cost_per_hour is not None):
                names = (candidate.accelerator,) if candidate.accelerator else ()
                cost = Cost(per_hour=candidate.cost_per_hour)
                self.tags[slot] = AcceleratorTag(classes=names, count=1, cost=cost).located()

    def _slot(self, name: str) -> int:
        slot = self.slots.get(name)
        if slot is None:
            slot = self.slots[name] = len(self.slots)
            number = _FIRST_ADDRESS + slot
            address = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
            self.endpoints.append(Endpoint(name, address, _PORT))
            self.tags.append(AcceleratorTag())
        return slot


def endpoints_of(run: ProfileRun) -> Collection[str]:
    """Return the endpoints with enough data in a run: scored ones and dropped ones.

    In a run without scores, also the endpoints that filters kept.
    """
    dropped = {drop.endpoint: None for step in run.filters for drop in step.dropped}
    if run.candidates:
        return {each.endpoint: None for each in run.candidates} | dropped
    return {name: None for step in run.filters for name in step.kept} | dropped


def _in_order(records: Iterable[DecisionRecord]) -> Iterable[str]:
    """Return endpoints in the order of the pool, which filters preserve; empty if that order changed."""
    before: dict[str, set[str]] = {}
    for record in records:
        for run in record.profiles:
            for step in run.filters:
                for names in (step.kept, [drop.endpoint for drop in step.dropped]):
                    for former, name in pairwise(names):
                        before.setdefault(name, set()).add(former)
    try:
        return tuple(TopologicalSorter(before).static_order())
    except CycleError:
        return ()


@dataclass(frozen=True, slots=True)
class Taken:
    endpoint: str = ""
    """Empty for a refused request."""
    slot: int = -1
    error: str = ""


class Replay:
    """Replays recorded decisions with one configuration.

    Recorded results are used for plugins that the recorded configuration has with the same parameters. Other plugins
    are called again, with the recorded load, accelerators and prices.
    """

    def __init__(self, assembly: Assembly, recorded_by: Assembly, fleet: Fleet) -> None:
        self._fleet = fleet
        self._assembly = assembly
        self._recalled = Recalled()
        same = same_plugins(assembly, recorded_by)
        scheduler = assembly.pipeline.scheduler
        profiles = {name: _with_recorded(each, self._recalled, same) for name, each in scheduler.profiles.items()}
        observer = SchedulingObserver()
        self._guard = Guard(observer)
        self._scheduler = scheduler.observed_by(observer, profiles)
        self._endpoints = Records[Endpoint | None](tuple(fleet.endpoints))
        self._attributes = MappingProxyType({ACCELERATOR.name: Records(tuple(fleet.tags))})

    def take(self, record: DecisionRecord, last_picked: Floats) -> Taken:
        snapshot = self._snapshot(record, last_picked)
        self._recalled.use(record, self._fleet.slots)
        request = _request(record)
        candidates = Candidates(snapshot, snapshot.available)
        try:
            for producer in self._assembly.pipeline.of(Producer):
                self._guard.call(Producer.role, producer, producer.produce, request, candidates)
            result: SchedulingResult = self._scheduler.schedule(request, candidates)
        except RequestError as error:
            return Taken(error=type(error).__name__.removesuffix("Error"))
        return Taken(result.targets[0].name, result.primary.slot)

    def _snapshot(self, record: DecisionRecord, last_picked: Floats) -> Snapshot:
        slots, count = self._fleet.slots, len(self._fleet.slots)
        columns = {column.name: np.full(count, column.unknown) for column in CORE_COLUMNS}
        there: Mask = np.zeros(count, dtype=np.bool_)
        for run in record.profiles:
            there[[slots[name] for name in endpoints_of(run)]] = True
            for each in run.candidates:
                slot = slots[each.endpoint]
                values = (each.waiting, each.running, each.kv_usage, each.in_flight)
                for column, value in zip(_KNOWN, values, strict=True):
                    if value is not None:
                        columns[column.name][slot] = value
        columns[LAST_PICKED.name] = last_picked.copy()
        available = read_only(there.nonzero()[0])
        return Snapshot(
            slots=available,
            available=available,
            endpoints=self._endpoints,
            columns=MappingProxyType({name: read_only(values) for name, values in columns.items()}),
            attributes=self._attributes,
            dry_run=True,
        )


def same_plugins(one: Assembly, other: Assembly) -> frozenset[str]:
    """Return the names of plugins that both have, with equal types, parameters and producers of their data."""
    others = other.instances.by_name
    return frozenset(
        name
        for name, plugin in one.instances.by_name.items()
        if name in others and _are_same(plugin, others[name]) and _are_fed_the_same(plugin, one, other)
    )


def _are_fed_the_same(plugin: Plugin[Any], one: Assembly, other: Assembly) -> bool:
    names = {datum.name for datum in (*plugin.reads, *plugin.may_read) if isinstance(datum, DataKey)}
    here, there = _writers(one, names), _writers(other, names)
    return here.keys() == there.keys() and all(_are_same(each, there[name]) for name, each in here.items())


def called_again(assembly: Assembly, recorded_by: Assembly) -> Mapping[str, tuple[str, ...]]:
    """Return the filters and scorers that are called again, with the data they read that records lack."""
    same = same_plugins(assembly, recorded_by)
    return {
        name: tuple(dict.fromkeys(_lacking(plugin, assembly, frozenset())))
        for name, plugin in members(assembly).items()
        if name not in same
    }


def _lacking(plugin: Plugin[Any], assembly: Assembly, asked: frozenset[str]) -> Iterator[str]:
    """Yield the data that a plugin reads, but neither records nor producers provide."""
    for datum in (*plugin.reads, *plugin.may_read):
        name = datum.name
        if name in RECORDED:
            continue
        writers = _writers(assembly, {name}) if isinstance(datum, DataKey) and name not in _OF_PROMPTS else {}
        if not writers or name in asked:
            yield name
        for writer in writers.values():
            if name not in asked:
                yield from _lacking(writer, assembly, asked | {name})


def members(assembly: Assembly) -> Mapping[str, Plugin[Any]]:
    """Return the filters and scorers of all profiles, by name."""
    found: dict[str, Plugin[Any]] = {}
    for profile in assembly.pipeline.scheduler.profiles.values():
        found |= {member.filter.name: member.filter for member in profile.filters}
        found |= {member.scorer.name: member.scorer for member in profile.scorers}
    return found


def _are_same(one: Plugin[Any], other: Plugin[Any]) -> bool:
    return type(one) is type(other) and bool(one.parameters == other.parameters)


def _writers(assembly: Assembly, names: Collection[str]) -> Mapping[str, Plugin[Any]]:
    """Return the plugins that write data of requests, by name."""
    return {
        plugin.name: plugin
        for plugin in assembly.plugins
        for datum in plugin.writes
        if isinstance(datum, DataKey) and datum.name in names
    }


def _with_recorded(profile: Profile, recalled: Recalled, same: frozenset[str]) -> Profile:
    return replace(
        profile,
        filters=tuple(
            replace(member, filter=RecordedFilter(member.filter, recalled)) if member.filter.name in same else member
            for member in profile.filters
        ),
        scorers=tuple(
            replace(member, scorer=RecordedScorer(member.scorer, recalled)) if member.scorer.name in same else member
            for member in profile.scorers
        ),
    )


def _request(record: DecisionRecord) -> Request:
    asked = record.asked
    fields = [(PATHS[0], asked.path)]
    if asked.objective:
        fields.append((OBJECTIVE[0], asked.objective))
    body = RequestBody(model=asked.model, prompt_tokens=asked.size_bytes // BYTES_PER_TOKEN, streaming=asked.streaming)
    request = Request(
        record.request_id,
        body,
        Headers(fields),
        path=asked.path,
        size_bytes=asked.size_bytes,
        fairness_id=asked.fairness_id,
        seed=int(asked.seed, 16) if asked.seed else 0,
        target_model=asked.target_model,
        rewritten_by=asked.rewrite,
        priority=asked.priority,
        objective=asked.objective,
        dry_run=True,
    )
    if asked.tenant:
        request.put(TENANT, Tenant(name=asked.tenant))
    return request
