"""What the machine counts: totals since its start, and histograms of seconds."""

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["Histogram", "Meters"]

_TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts of observations under ascending upper bounds; a value equal to a bound is under it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, observations at or under it), the last bound being infinite."""
        total = 0
        rows: list[tuple[float, int]] = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


@dataclass(slots=True)
class Meters:
    """Counters and histograms of one machine; it alone writes them.

    Prefix queries and hits count the prompt tokens asked for and found at admission; prompt tokens count when
    the first output token is out. All histograms are in seconds.
    """

    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(_TTFT_BOUNDS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(_INTER_TOKEN_BOUNDS))
    request_latency: Histogram = field(default_factory=lambda: Histogram(_LATENCY_BOUNDS))
