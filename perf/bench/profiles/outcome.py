# SPDX-License-Identifier: Apache-2.0
"""Outcome of the requests of a run: times, missed targets and dollars."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

WARM_UP_SECONDS = 25.0
"""Warm-up, whose requests are not counted: conversations are still short, and little is learned."""
TARGET_SECONDS = 1.0
"""Target for the time to the first token."""
TARGET_TPOT_SECONDS = 0.1
"""Target for the time between two tokens."""
TIMEOUT_SECONDS = 30.0
"""Time after which clients without a first token disconnect."""


class Target(NamedTuple):
    """Latency targets."""

    ttft: float = TARGET_SECONDS
    tpot: float = TARGET_TPOT_SECONDS


DEFAULT_TARGET = Target()


@dataclass
class Served:
    """One request."""

    at: float
    """Time at which it was sent, in seconds since the start."""
    server: str = ""
    ttft: float | None = None
    """Seconds to the first token; None if it was too late."""
    tpot: float | None = None
    """Seconds between two tokens."""
    refused: bool = False
    group: str = ""
    """Kind of request, if the workload has several."""
    prompt_tokens: int = 0
    """Server of an answered request."""
    cached_tokens: int = 0

    def is_over(self, target: Target) -> bool:
        """Return whether it missed a target."""
        late = self.ttft is None or self.ttft > target.ttft
        return late or (self.tpot is not None and self.tpot > target.tpot)


@dataclass(frozen=True)
class Outcome:
    """One run."""

    seconds: float
    served: tuple[Served, ...]
    dollars: float
    """Busy time of the servers times their price."""
    busy: Mapping[str, float] = field(default_factory=dict)
    target: Target = DEFAULT_TARGET
    adapter_loads: int = 0
    """Number of times that servers loaded an adapter."""

    def of_group(self, group: str) -> "Outcome":
        """Return the outcome of the requests of one kind."""
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
        """Return a quantile of the time to the first token; requests without an answer count as infinite."""
        times = sorted(inf if one.ttft is None else one.ttft for one in self.counted)
        return times[min(len(times) - 1, int(share * len(times)))]

    def tpot(self, share: float) -> float:
        """Return a quantile of the mean time between tokens; requests without an answer count as infinite."""
        times = sorted(inf if one.tpot is None else one.tpot for one in self.counted)
        return times[min(len(times) - 1, int(share * len(times)))]

    @property
    def mean_ttft(self) -> float:
        """Mean time to the first token; requests without an answer count as 30 s."""
        times = [30.0 if one.ttft is None else one.ttft for one in self.counted]
        return sum(times) / len(times)

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that were cached."""
        return sum(one.cached_tokens for one in self.counted) / sum(one.prompt_tokens for one in self.counted)

    @property
    def over_target(self) -> float:
        """Share of requests that missed a target for the first token or the time between tokens."""
        counted = self.counted
        return sum(one.is_over(self.target) for one in counted) / len(counted)

    @property
    def timeouts(self) -> float:
        """Share of requests without an answer in time."""
        counted = self.counted
        return sum(one.ttft is None for one in counted) / len(counted)

    @property
    def servers(self) -> set[str]:
        """Servers that answered requests."""
        return {one.server for one in self.counted}

    @property
    def dollars_per_1000(self) -> float:
        return 1000 * self.dollars / len(self.served)
