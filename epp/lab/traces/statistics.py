# SPDX-License-Identifier: Apache-2.0
"""Statistics of a trace in one pass: 24 bytes of memory for each request, and a limit on everything else."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from math import ceil

import msgspec
import numpy as np

from epp.framework.arrays import Floats
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
_HASH_BITS = 64
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**_HASH_BITS - 1


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the statistics."""


class Lengths(_Part, frozen=True, kw_only=True):
    """Distribution of numbers of tokens or turns."""

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
    times, prompts, outputs = array("d"), array("q"), array("q")
    prefixes = _Blocks(trace.block_tokens)
    names = {kind: Counter[str]() for kind in ("model", "tenant", "objective")}
    sessions: dict[str, int] = {}
    for number, request in enumerate(trace):
        if number % _TICK_REQUESTS == 0:
            tick()
        times.append(request.at)
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
        if request.blocks:
            prefixes.add(request.blocks)
        if request.session and (request.session in sessions or len(sessions) < MOST_SESSIONS):
            sessions[request.session] = sessions.get(request.session, 0) + 1
        for kind, counts in names.items():
            name = getattr(request, kind)
            if name:
                counts[name if name in counts or len(counts) < _MOST_NAMES else "(others)"] += 1
    if not times:
        return None
    since = np.array(times) - times[0]
    seconds = float(since[-1])
    problems = trace.problems if isinstance(trace, FileTrace) else Problems(trace.name)
    return Statistics(
        name=trace.name,
        format=trace.format if isinstance(trace, FileTrace) else "",
        requests=len(times),
        seconds=seconds,
        rate=len(times) / seconds if seconds else 0.0,
        peak=int(np.unique(since.astype(np.int64), return_counts=True)[1].max()),
        gap_variation=_gap_variation(since),
        dispersion=_dispersion(since),
        prompt=_lengths(prompts),
        output=_lengths(outputs),
        prefixes=prefixes.result(sum(prompts)) if prefixes.total else None,
        turns=_lengths([*sessions.values()]) if sessions else None,
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


def _gap_variation(since: Floats) -> float | None:
    gaps = np.diff(since)
    return float(gaps.std() / gaps.mean()) if gaps.any() else None


def _dispersion(since: Floats) -> float | None:
    """Return the index of dispersion of the full windows."""
    counts = np.bincount((since / WINDOW_SECONDS).astype(np.int64))[:-1]
    return float(counts.var() / counts.mean()) if len(counts) > 1 and counts.any() else None


def _lengths(numbers: Sequence[int]) -> Lengths:
    found = np.sort(np.array(numbers))
    p50, p90, p99 = (int(found[ceil(share * len(found)) - 1]) for share in (0.5, 0.9, 0.99))
    return Lengths(mean=float(found.mean()), p50=p50, p90=p90, p99=p99, max=int(found[-1]))


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
