# SPDX-License-Identifier: Apache-2.0
"""Statistics of a trace in one pass and bounded memory."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import accumulate
from math import ceil, sqrt

import msgspec

from epp.lab.traces.trace import FileTrace, Problems, Trace

MOST_BLOCKS = 2_000_000
"""Maximum number of distinct blocks to remember; if a trace has more, they are sampled."""
RECENT_TOKENS = 1_000_000
"""Size of the small prefix cache."""
WINDOW_SECONDS = 10.0
"""Length of the windows for the index of dispersion."""
MOST_SESSIONS = 1_000_000
"""Maximum number of sessions to remember; later ones are left out."""
_TICK_REQUESTS = 1_000
_MOST_NAMES = 10_000
_LISTED_NAMES = 10
_EXACT_BITS = 8
_HASH_BITS = 64
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**_HASH_BITS - 1


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the statistics."""


class Lengths(_Part, frozen=True, kw_only=True):
    """Distribution of numbers of tokens or turns; quantiles are exact to half a percent."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int


class Prefixes(_Part, frozen=True, kw_only=True):
    block_tokens: int
    known_share: float
    """Share of the prompt tokens with block ids."""
    shared: float
    """Share of the prompt tokens in blocks that an earlier request had."""
    shared_recently: float
    """Share of the prompt tokens found in an LRU cache of a million tokens."""
    blocks: int
    estimated: bool
    """Whether `shared` and `blocks` are estimates from a sample."""


class Named(_Part, frozen=True, kw_only=True):
    """Number of names, and the requests of the most frequent ones."""

    names: int
    requests: dict[str, int]


class Statistics(_Part, frozen=True, kw_only=True):
    name: str
    format: str
    requests: int
    seconds: float
    """Time from the first request to the last."""
    rate: float
    """Mean requests per second; 0 if all arrive at the same time."""
    peak: int
    """Maximum number of requests in one second, counted from the first request."""
    gap_variation: float | None
    """Coefficient of variation of the times between requests: 1 for a Poisson process, 0 for a constant rate."""
    dispersion: float | None
    """Variance-to-mean ratio of the requests in windows of 10 seconds: 1 for a Poisson process."""
    prompt: Lengths
    output: Lengths
    prefixes: Prefixes | None
    """None for a trace without blocks."""
    turns: Lengths | None
    """Requests of a session; None for a trace without sessions."""
    sessions: int
    models: Named
    tenants: Named
    objectives: Named
    lines: int
    broken: int
    broken_lines: list[str]
    skipped: dict[str, int]


def statistics_of(trace: Trace, tick: Callable[[], None] = lambda: None) -> Statistics | None:
    """Return the statistics of a trace; None if it has no requests. Raises TraceError.

    `tick` is called regularly while the trace is read.
    """
    arrivals, prompt, output, prefixes = _Arrivals(), _Histogram(), _Histogram(), _Blocks(trace.block_tokens)
    names = {kind: Counter[str]() for kind in ("model", "tenant", "objective")}
    sessions: dict[str, int] = {}
    for number, request in enumerate(trace):
        if number % _TICK_REQUESTS == 0:
            tick()
        arrivals.add(request.at)
        prompt.add(request.prompt_tokens)
        output.add(request.output_tokens)
        if request.blocks:
            prefixes.add(request.blocks)
        if request.session and (request.session in sessions or len(sessions) < MOST_SESSIONS):
            sessions[request.session] = sessions.get(request.session, 0) + 1
        for kind, counts in names.items():
            name = getattr(request, kind)
            if name:
                counts[name if name in counts or len(counts) < _MOST_NAMES else "(others)"] += 1
    if not prompt.count:
        return None
    turns = _Histogram()
    for count in sessions.values():
        turns.add(count)
    problems = trace.problems if isinstance(trace, FileTrace) else Problems(trace.name)
    return Statistics(
        name=trace.name,
        format=trace.format if isinstance(trace, FileTrace) else "",
        requests=prompt.count,
        seconds=arrivals.seconds,
        rate=prompt.count / arrivals.seconds if arrivals.seconds else 0.0,
        peak=arrivals.peak,
        gap_variation=arrivals.gap_variation,
        dispersion=arrivals.dispersion,
        prompt=prompt.lengths(),
        output=output.lengths(),
        prefixes=prefixes.result(prompt.sum) if prefixes.total else None,
        turns=turns.lengths() if sessions else None,
        sessions=len(sessions),
        models=_named(names["model"]),
        tenants=_named(names["tenant"]),
        objectives=_named(names["objective"]),
        lines=problems.read,
        broken=problems.broken,
        broken_lines=problems.named,
        skipped=dict(problems.skipped),
    )


def _named(counts: Counter[str]) -> Named:
    return Named(names=len(counts), requests=dict(counts.most_common(_LISTED_NAMES)))


class _Arrivals:
    def __init__(self) -> None:
        self.peak = 0
        self._count = 0
        self._first = self._last = 0.0
        self._squares = 0.0  # of the gaps
        self._second, self._in_second = 0, 0
        self._window, self._in_window = 0, 0
        self._window_squares = 0.0
        self._windowed = 0

    @property
    def seconds(self) -> float:
        return self._last - self._first

    @property
    def gap_variation(self) -> float | None:
        gaps = self._count - 1
        if gaps < 1 or not self.seconds:
            return None
        mean = self.seconds / gaps
        return sqrt(max(self._squares / gaps - mean * mean, 0.0)) / mean

    @property
    def dispersion(self) -> float | None:
        """Index of dispersion of the full windows."""
        windows = self._window
        if windows < 2 or not self._windowed:  # noqa: PLR2004
            return None
        mean = self._windowed / windows
        return max(self._window_squares / windows - mean * mean, 0.0) / mean

    def add(self, at: float) -> None:
        if not self._count:
            self._first = self._last = at
        self._count += 1
        gap, self._last = at - self._last, at
        self._squares += gap * gap
        since = at - self._first
        if int(since) != self._second:
            self._second, self._in_second = int(since), 0
        self._in_second += 1
        self.peak = max(self.peak, self._in_second)
        if (window := int(since / WINDOW_SECONDS)) != self._window:
            self._windowed += self._in_window
            self._window_squares += self._in_window**2
            self._window, self._in_window = window, 0
        self._in_window += 1


class _Histogram:
    """Counts of positive integers, each rounded to its eight leading bits."""

    def __init__(self) -> None:
        self.count = self.sum = self._max = 0
        self._counts = Counter[int]()

    def add(self, number: int) -> None:
        self.count += 1
        self.sum += number
        self._max = max(self._max, number)
        if shift := max(number.bit_length() - _EXACT_BITS, 0):
            number = (number >> shift << shift) + (1 << shift >> 1)
        self._counts[number] += 1

    def lengths(self) -> Lengths:
        numbers = sorted(self._counts)
        below = list(accumulate(self._counts[number] for number in numbers))

        def quantile(share: float) -> int:
            rank = ceil(share * self.count)
            found = next(number for number, count in zip(numbers, below, strict=True) if count >= rank)
            return min(found, self._max)

        mean = self.sum / self.count
        return Lengths(mean=mean, p50=quantile(0.5), p90=quantile(0.9), p99=quantile(0.99), max=self._max)


class _Blocks:
    """Blocks of earlier requests: all of them, or a sample that is halved whenever it is too large."""

    def __init__(self, block_tokens: int) -> None:
        self.total = 0
        self._block_tokens = block_tokens
        self._seen: set[int] = set()
        self._halvings = 0
        self._shared = 0
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._most_recent = max(RECENT_TOKENS // block_tokens, 1)
        self._shared_recently = 0

    def add(self, blocks: tuple[int, ...]) -> None:
        self.total += len(blocks)
        recent = self._recent
        for block in blocks:
            if block in recent:
                self._shared_recently += 1
                recent.move_to_end(block)
            else:
                recent[block] = None
                if len(recent) > self._most_recent:
                    recent.popitem(last=False)
        sampled = list(filter(self._is_sampled, blocks)) if self._halvings else blocks
        new = [block for block in sampled if block not in self._seen]
        self._shared += len(sampled) - len(new) << self._halvings
        self._seen.update(new)
        while len(self._seen) > MOST_BLOCKS:
            self._halvings += 1
            self._seen = set(filter(self._is_sampled, self._seen))

    def _is_sampled(self, block: int) -> bool:
        return not (block * _GOLDEN & _MASK) >> (_HASH_BITS - self._halvings)

    def result(self, prompt_tokens: int) -> Prefixes:
        share = self._block_tokens / prompt_tokens
        return Prefixes(
            block_tokens=self._block_tokens,
            known_share=self.total * share,
            shared=min(self._shared, self.total) * share,
            shared_recently=self._shared_recently * share,
            blocks=len(self._seen) << self._halvings,
            estimated=self._halvings > 0,
        )
