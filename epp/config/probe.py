# SPDX-License-Identifier: Apache-2.0
"""Tries plugins on made-up endpoints to find undeclared reads, unusable results, errors and slow calls early."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from epp.framework.arrays import Floats, ResultError
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.errors import InternalError, PluginFailedError, RequestError
from epp.framework.messages import described
from epp.framework.plugin import Plugin, SchedulingObserver
from epp.framework.records import Records
from epp.framework.request import (
    AGENT_IDENTITY,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    SESSION_ID,
    DataKey,
    PrefixMatch,
    PromptTokens,
    Request,
    RequestBody,
)
from epp.framework.snapshot import CORE_COLUMNS, Attribute, Column, Snapshot
from epp.routing.scheduling.scheduler import Scheduler

T = TypeVar("T")

SLOW_SECONDS = 0.01
"""Duration of a slow call: a hundred times that of a usual decision."""
_TRIALS, _PATIENCE_SECONDS = 5, 0.5
TIME_LIMIT_SECONDS = 5.0
"""Time limit for the trial of one plugin."""
_PROMPT_TOKENS = 256
_VALUES = {
    PREFIX_MATCH.name: PrefixMatch(np.array([2, 0, 1], dtype=np.int32), total_blocks=4, block_tokens=64),
    PROMPT_TOKENS.name: PromptTokens(_PROMPT_TOKENS),
    SESSION_ID.name: "session",
    AGENT_IDENTITY.name: "agent",
}
_KNOWN = np.array([0.25, 0.5])
_UNKNOWN = np.full(3, np.nan)
_MADE_UP = tuple(Endpoint(f"probe-{i}", f"192.0.2.{i + 1}", 8000) for i in range(len(_UNKNOWN)))


@dataclass(frozen=True, slots=True)
class Findings:
    undeclared: tuple[str, ...]
    """Names of data that the plugin reads without declaring them."""
    unusable: tuple[str, ...]
    """Results that no request could use."""
    raised: tuple[str, ...]
    """Other errors, perhaps caused only by made-up data."""
    seconds: float = field(default=0.0, compare=False)
    """Duration of the slower call."""


def in_time(trials: Sequence[Callable[[], T]], *, limit_seconds: float = TIME_LIMIT_SECONDS) -> list[T]:
    """Return the results of trials up to the first that exceeds the limit; their thread keeps running then."""
    results: list[T] = []
    found: SimpleQueue[T] = SimpleQueue()

    def run() -> None:
        for trial in trials:
            found.put(trial())

    threading.Thread(target=run, name="plugin-trial", daemon=True).start()
    with suppress(Empty):
        while len(results) < len(trials):
            results.append(found.get(timeout=limit_seconds))
    return results


class _Problems(SchedulingObserver):
    def __init__(self) -> None:
        self.found: dict[str, tuple[Exception, str]] = {}
        """The last problem of each plugin."""

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        self.found[plugin] = error, problem


def rehearse_scheduling(scheduler: Scheduler) -> Mapping[str, Findings]:
    """Try the profile picker and the aggregator on two made-up endpoints; return findings by name of the plugin.

    Profiles run once with their filters, which may leave no candidates, and once without.
    """
    unfiltered = {name: replace(profile, filters=()) for name, profile in scheduler.profiles.items()}
    picker, aggregator = scheduler.profile_picker, scheduler.aggregator
    findings: dict[str, Findings] = {}
    for profiles in (scheduler.profiles, unfiltered):
        problems = _Problems()
        pool = Candidates(_watched_snapshot(set(), _KNOWN), np.arange(len(_KNOWN), dtype=np.intp), profile="probe")
        try:
            scheduler.observed_by(problems, profiles).schedule(_request(set(), ""), pool)
        except PluginFailedError:
            pass  # recorded by the observer
        except InternalError as error:
            problems.found[picker.name] = error, str(error)
        except RequestError:
            pass  # a refusal is an answer
        for name in {picker.name, aggregator.name} & problems.found.keys():
            raised, problem = problems.found[name]
            is_unusable = isinstance(raised, ResultError)
            findings[name] = Findings((), (problem,) if is_unusable else (), () if is_unusable else (problem,))
    return findings


def rehearse(plugin: Plugin[Any], timer: Callable[[], float] = perf_counter) -> Findings:
    """Try a plugin on two endpoints with known columns and on three without reports."""
    touched: set[str] = set()
    seconds = 0.0
    unusable: dict[str, None] = {}
    raised: dict[str, None] = {}
    for column in (_KNOWN, _UNKNOWN):
        snapshot = _watched_snapshot(touched, column)
        pool = Candidates(snapshot, np.arange(len(column), dtype=np.intp), profile="probe")
        try:
            seconds = max(seconds, _least_seconds(partial(_rehearse, plugin, touched, pool), timer))
        except RequestError:
            continue  # a refusal is an answer
        except ResultError as error:
            unusable[str(error)] = None
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            raised[described(error, type(plugin))] = None
    declared = {datum.name for datum in (*plugin.reads, *plugin.may_read, *plugin.writes)}
    return Findings(tuple(sorted(touched - declared)), tuple(unusable), tuple(raised), seconds)


def _rehearse(plugin: Plugin[Any], touched: set[str], pool: Candidates) -> None:
    plugin.rehearse(_request(touched, plugin.name), pool)


def _request(touched: set[str], owner: str) -> "_WatchedRequest":
    body = RequestBody(model="probe", prompt=b"x" * 1024, prompt_tokens=_PROMPT_TOKENS)
    request = _WatchedRequest("probe", body, dry_run=True)
    request.touched = touched
    request.owner = owner
    return request


def _least_seconds(call: Callable[[], None], timer: Callable[[], float]) -> float:
    """Return the duration of a call; for a slow call the shortest of several.

    The first call may load data that later calls reuse, and the machine may delay any call.
    """
    began, least = timer(), inf
    for number in range(1, _TRIALS + 1):
        started = timer()
        call()
        ended = timer()
        least = min(least, ended - started)
        if least < SLOW_SECONDS or (number > 1 and ended - began > _PATIENCE_SECONDS):
            break
    return least


class _WatchedRequest(Request):
    """Records the data that a plugin reads."""

    touched: set[str] = msgspec.field(default_factory=set)
    owner: str = ""

    def get(self, key: DataKey[T]) -> T | None:
        found = super().get(key)
        if found is not None:
            return found  # written by the plugin itself
        if key.producer != self.owner:  # private data of the plugin
            self.touched.add(key.name)
        return cast("T | None", _VALUES.get(key.name))


class _WatchedSnapshot(Snapshot, frozen=True):
    """Records the columns and attributes that a plugin reads."""

    touched: set[str] = msgspec.field(default_factory=set)
    made: dict[str, Records[Any]] = msgspec.field(default_factory=dict)
    """Records by name of the attribute, so that a second call reuses the values derived from them."""

    def column(self, column: Column) -> Floats:
        self.touched.add(column.name)
        return super().column(column)

    def records(self, attribute: Attribute[T]) -> Records[T]:
        self.touched.add(attribute.name)
        if attribute.name not in self.made:
            self.made[attribute.name] = super().records(attribute)
        return self.made[attribute.name]


def _watched_snapshot(touched: set[str], values: Floats) -> _WatchedSnapshot:
    slots = np.arange(len(values), dtype=np.intp)
    return _WatchedSnapshot(
        slots=slots,
        available=slots,
        endpoints=Records[Endpoint | None](_MADE_UP[: len(values)]),
        columns={column.name: np.where(np.isnan(values), column.unknown, values) for column in CORE_COLUMNS},
        dry_run=True,
        touched=touched,
    )
