# SPDX-License-Identifier: Apache-2.0
"""Engines of simulated servers in virtual time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from epp.lab.sim import Emission, Machine, SimProfile, SimRequest
from epp.lab.sim.kv_cache import BlockHash


class Event(NamedTuple):
    """The first token of a request, or its last."""

    request_id: int
    at: float
    ended: bool
    cached_tokens: int = 0
    """Of the prompt."""


class Engine(ABC):
    """A server without its network, which is told what time it is."""

    busy_seconds = 0.0
    """Time in which it worked for a request."""
    adapter_loads = 0
    """Adapters loaded so far."""
    preemptions = 0
    """Requests that lost their blocks and were computed again."""

    @property
    @abstractmethod
    def next_event_at(self) -> float | None:
        """Time of its next change; None while it is idle."""

    @abstractmethod
    def advance(self, now: float) -> Sequence[Event]:
        """Let time pass."""

    @abstractmethod
    def submit(self, request: SimRequest) -> None:
        """Queue a request."""

    @abstractmethod
    def abort(self, request_id: int) -> None:
        """Remove a request, if it is there."""

    @abstractmethod
    def gauges(self) -> tuple[int, int, float]:
        """Return requests running and waiting, and the KV usage."""

    @property
    def cached_hashes(self) -> AbstractSet[BlockHash]:
        """Hashes of the blocks in its KV cache; none of an engine that publishes none."""
        return frozenset()

    def adapters(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the running and the waiting adapters."""
        return (), ()


class Simulated(Engine):
    """The machine of `epp.lab.sim`."""

    def __init__(self, profile: SimProfile) -> None:
        self.machine = Machine(profile)

    @property
    def next_event_at(self) -> float | None:
        return self.machine.next_event_at

    def advance(self, now: float) -> Sequence[Event]:
        before = self.machine.now
        was_busy = self.machine.next_event_at is not None
        emissions = self.machine.advance(now)
        if was_busy:
            self.busy_seconds += now - before
        return [_event(one) for one in emissions if one.index == 0 or one.finish_reason is not None]

    def submit(self, request: SimRequest) -> None:
        self.machine.submit(request)

    def abort(self, request_id: int) -> None:
        self.machine.abort(request_id)

    @property
    def cached_hashes(self) -> AbstractSet[BlockHash]:
        return self.machine.cached_hashes

    def gauges(self) -> tuple[int, int, float]:
        return self.machine.running, self.machine.waiting, self.machine.kv_usage

    @property
    def adapter_loads(self) -> int:  # type: ignore[override]
        return self.machine.adapter_loads

    def adapters(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.machine.running_adapters, self.machine.waiting_adapters


def _event(emission: Emission) -> Event:
    return Event(emission.request_id, emission.at_seconds, emission.finish_reason is not None, emission.cached_tokens)
