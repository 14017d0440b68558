# SPDX-License-Identifier: Apache-2.0
"""Kinds that the picker can do without: which of them cannot be read is said in one log line."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog

from epp.kube.watched import Watched, WatchState

_SETTLING_SECONDS = 10.0
"""Longest wait until the API server has answered for all kinds."""
_GATHERING_SECONDS = 1.0
"""Changes that arrive within this time are said together."""

_log = structlog.get_logger()


class OptionalKinds:
    """Says which kinds are not installed or forbidden, once, and which of them could be read since or no more."""

    def __init__(self) -> None:
        self._watches: dict[Watched[Any], WatchState] = {}
        """Each with the state that was said last."""
        self._noticed = asyncio.Event()

    def add(self, watched: Watched[Any]) -> None:
        """Include a kind."""
        self._watches[watched] = WatchState.STARTING
        self._noticed.set()

    def discard(self, watched: Watched[Any]) -> None:
        """Say nothing more of a kind."""
        self._watches.pop(watched, None)

    def notice(self) -> None:
        """Take note that the state of a kind changed."""
        self._noticed.set()

    async def follow(self) -> None:
        """Say what changes until cancelled."""
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLING_SECONDS):
                    for watch in tuple(self._watches):
                        await watch.settled()
            await asyncio.sleep(_GATHERING_SECONDS)
            self._say()

    def _say(self) -> None:
        changed = {watch: said for watch, said in self._watches.items() if watch.state is not said}
        # While the API server is away, the watch of the pods says so.
        changed = {watch: said for watch, said in changed.items() if watch.state is not WatchState.STALE}
        self._watches.update({watch: watch.state for watch in changed})
        back = [watch for watch, said in changed.items() if said in _UNREADABLE and watch.state is WatchState.CURRENT]
        forbidden = [watch for watch in changed if watch.state is WatchState.FORBIDDEN]
        absent = [
            watch for watch, said in changed.items() if watch.state is WatchState.ABSENT and said not in _UNREADABLE
        ]
        narrowed = [watch for watch in changed if watch.state is WatchState.CURRENT and watch.is_narrowed]
        if back:
            _log.info("optional objects readable now", resources=sorted(watch.title for watch in back))
        if forbidden or absent or narrowed:
            lost = any(changed[watch] is WatchState.CURRENT for watch in forbidden)
            (_log.warning if lost else _log.info)("optional objects not read", **_fields(forbidden, absent, narrowed))


_UNREADABLE = frozenset({WatchState.ABSENT, WatchState.FORBIDDEN})


def _fields(
    forbidden: Iterable[Watched[Any]], absent: Iterable[Watched[Any]], narrowed: Iterable[Watched[Any]]
) -> dict[str, object]:
    """Return what is forbidden in words of RBAC, what is not installed, and the remedy."""
    fields: dict[str, object] = {}
    if refused := sorted(map(_right, forbidden)):
        fields["forbidden"] = refused
    if partly := sorted(watch.title for watch in narrowed):
        fields["only_in_own_namespace"] = partly
    if refused or partly:
        fields["remedy"] = "to use them, allow list and watch, at cluster scope in a ClusterRole; no restart is needed"
    if missing := sorted(watch.resource.title for watch in absent):
        fields["not_installed"] = missing
    return fields


def _right(watch: Watched[Any]) -> str:
    """Return verb, resource, group and scope."""
    verb = "watch" if watch.lists else "list"
    group = watch.resource.group or "core"
    scope = f"in namespace {watch.namespace}" if watch.namespace else "at cluster scope"
    return f"{verb} {watch.resource.plural or watch.resource.kind} of group {group} {scope}"
