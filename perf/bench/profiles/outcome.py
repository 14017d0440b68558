# SPDX-License-Identifier: Apache-2.0
"""What became of the requests of a run: times, misses and dollars."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

WARM_UP_SECONDS = 25.0
"""Requests sent before are not counted: conversations are still short, and little is learned."""
TARGET_SECONDS = 1.0
"""To the first token."""
TARGET_TPOT_SECONDS = 0.1
"""Between two tokens."""
TIMEOUT_SECONDS = 30.0
"""Without a first token by then, clients leave."""


class Target(NamedTuple):
    """Longest times wanted."""

    ttft: float = TARGET_SECONDS
    tpot: float = TARGET_TPOT_SECONDS


DEFAULT_TARGET = Target()


@dataclass
class Served:
    """One request."""

    at: float
    """When it was sent, in seconds since the start."""
    server: str = ""
    ttft: float | None = None
    """Seconds to the first token; None for none in time."""
    tpot: float | None = None
    """Seconds between two tokens."""
    refused: bool = False
    group: str = ""
    """Kind of request, where a workload has several."""
    prompt_tokens: int = 0
    """Of an answered request."""
    cached_tokens: int = 0

    def is_over(self, target: Target) -> bool:
        """Return whether it took longer than wanted."""
        late = self.ttft is None or self.ttft > target.ttft
        return late or (self.tpot is not None and self.tpot > target.tpot)


@dataclass(frozen=True)
class Outcome:
    """One run."""

    seconds: float
    served: tuple[Served, ...]
    dollars: float
    """Time in which servers worked, times their price."""
    busy: Mapping[str, float] = field(default_factory=dict)
    target: Target = DEFAULT_TARGET
    adapter_loads: int = 0
    """Adapters that servers loaded, each time counted."""

    def of_group(self, group: str) -> "Outcome":
        """Return what became of the requests of one kind."""
        return replace(self, served=tuple(one for one in self.served if one.group == group))

    @property
    def groups(self) -> list[str]:
        """Kinds of requests."""
        return sorted({one.group for one in self.served} - {""})

    @property
    def counted(self) -> list[Served]:
        slowness = self.target.ttft / TARGET_SECONDS
        return [one for one in self.served if one.at >= WARM_UP_SECONDS * slowness]

    def ttft(self, share: float) -> float:
        """Return a quantile of the time to the first token; infinite for no answer in time."""
        times = sorted(inf if one.ttft is None else one.ttft for one in self.counted)
        return times[min(len(times) - 1, int(share * len(times)))]

    def tpot(self, share: float) -> float:
        """Return a quantile of the mean time between two tokens of an answer; infinite for no answer in time."""
        times = sorted(inf if one.tpot is None else one.tpot for one in self.counted)
        return times[min(len(times) - 1, int(share * len(times)))]

    @property
    def mean_ttft(self) -> float:
        """Mean; no answer in time counts as 30 s."""
        times = [30.0 if one.ttft is None else one.ttft for one in self.counted]
        return sum(times) / len(times)

    @property
    def cached_share(self) -> float:
        """Share of the tokens of prompts that were in a cache."""
        return sum(one.cached_tokens for one in self.counted) / sum(one.prompt_tokens for one in self.counted)

    @property
    def over_target(self) -> float:
        """Share of requests whose first token, or whose tokens after that, took longer than wanted."""
        counted = self.counted
        return sum(one.is_over(self.target) for one in counted) / len(counted)

    @property
    def timeouts(self) -> float:
        """Share of requests without an answer in time."""
        counted = self.counted
        return sum(one.ttft is None for one in counted) / len(counted)

    @property
    def servers(self) -> set[str]:
        """Servers that answered."""
        return {one.server for one in self.counted}

    @property
    def dollars_per_1000(self) -> float:
        return 1000 * self.dollars / len(self.served)
