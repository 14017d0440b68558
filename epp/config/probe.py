"""Tries plugins on two made-up endpoints, to see that they read nothing that they do not declare."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar, cast

import numpy as np

from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint
from epp.framework.hooks import Admitter, Producer
from epp.framework.plugins import Decider, Filter, Plugin, Scorer
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
from epp.framework.snapshot import CORE_COLUMNS, Attribute, Column, Records, Snapshot

T = TypeVar("T")

_PROMPT_TOKENS = 256
_VALUES = {
    PREFIX_MATCH.name: PrefixMatch(np.array([2, 0], dtype=np.int32), total_blocks=4, block_tokens=64),
    PROMPT_TOKENS.name: PromptTokens(_PROMPT_TOKENS),
    SESSION_ID.name: "session",
    AGENT_IDENTITY.name: "agent",
}


def undeclared_reads(plugin: Plugin[Any]) -> list[str]:
    """Return the names of what the plugin read on the trial and does not declare; what it raises is not looked at."""
    touched: set[str] = set()
    request = _WatchedRequest("probe", RequestBody(model="probe", prompt=b"x" * 1024, prompt_tokens=_PROMPT_TOKENS))
    request.touched = touched
    request.owner = plugin.name
    pool = Candidates(_watched_snapshot(touched), np.arange(2, dtype=np.intp))
    for trial in _trials(plugin, request, pool):
        with suppress(Exception):  # made-up data may be beyond it; requests will tell
            trial()
    declared = {datum.name for datum in (*plugin.reads, *plugin.may_read, *plugin.writes)}
    return sorted(touched - declared)


def _trials(plugin: Plugin[Any], request: Request, pool: Candidates) -> Iterator[Callable[[], object]]:
    if isinstance(plugin, Producer):
        yield lambda: plugin.produce(request, pool)
    if isinstance(plugin, Admitter):
        yield lambda: plugin.admit(request, pool)
    if isinstance(plugin, Filter):
        yield lambda: plugin.filter(request, pool)
    if isinstance(plugin, Scorer):
        yield lambda: plugin.score(request, pool)
    if isinstance(plugin, Decider):
        yield lambda: plugin.decide(request, None)


class _WatchedRequest(Request):
    touched: set[str]
    owner: str
    __slots__ = ("owner", "touched")

    def get(self, key: DataKey[T]) -> T | None:
        found = super().get(key)
        if found is not None:
            return found  # its own
        if key.producer != self.owner:  # what a plugin keeps for itself
            self.touched.add(key.name)
        return cast("T | None", _VALUES.get(key.name))


class _WatchedSnapshot(Snapshot):
    """Notes which columns and records are asked for."""

    touched: set[str]

    def column(self, column: Column) -> Floats:
        self.touched.add(column.name)
        return super().column(column)

    def records(self, attribute: Attribute[T]) -> Records[T]:
        self.touched.add(attribute.name)
        return super().records(attribute)


def _watched_snapshot(touched: set[str]) -> Snapshot:
    endpoints = tuple(Endpoint(f"probe-{i}", f"192.0.2.{i + 1}", 8000) for i in range(2))
    slots = np.arange(2, dtype=np.intp)
    snapshot = _WatchedSnapshot(
        slots=slots,
        available=slots,
        endpoints=Records[Endpoint | None](endpoints),
        columns=dict(_columns(CORE_COLUMNS)),
    )
    object.__setattr__(snapshot, "touched", touched)  # the snapshot itself is frozen
    return snapshot


def _columns(columns: Iterable[Column]) -> Iterable[tuple[str, Floats]]:
    for column in columns:
        yield column.name, np.array([0.25, 0.5])
