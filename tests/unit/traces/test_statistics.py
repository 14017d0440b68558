# SPDX-License-Identifier: Apache-2.0
"""Statistics of traces, computed by hand beside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from epp.lab.traces import statistics
from epp.lab.traces.statistics import Statistics, statistics_of
from epp.lab.traces.trace import TraceRequest


@dataclass
class Requests:
    requests: Sequence[TraceRequest]
    name: str = "requests"
    block_tokens: int = 10

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def found(*requests: TraceRequest) -> Statistics:
    result = statistics_of(Requests(requests))
    assert result is not None
    return result


def request(at: float = 0.0, prompt: int = 100, output: int = 10, **more) -> TraceRequest:
    return TraceRequest(at=at, prompt_tokens=prompt, output_tokens=output, **more)


def test_an_empty_trace_has_no_statistics():
    assert statistics_of(Requests([])) is None


def test_rate_and_peak():
    result = found(*(request(at) for at in (5.0, 5.1, 5.9, 6.5, 9.0)))
    assert (result.requests, result.seconds, result.rate, result.peak) == (5, 4, 1.25, 3)


def test_a_constant_rate_has_no_variation_and_one_moment_has_no_rate():
    result = found(*(request(float(at)) for at in range(100)))
    assert (result.gap_variation, result.dispersion) == (0, 0)  # each full window of 10 s has 10
    single = found(request(), request())
    assert (single.rate, single.peak, single.gap_variation, single.dispersion) == (0, 2, None, None)


def test_variation_of_gaps_and_dispersion():
    # Gaps 0, 2, 0, 2, ...: mean 1, deviation 1. Windows of 10 s: 2 at each even second, 10.
    pairs = found(*(request(2.0 * (number // 2)) for number in range(40)))
    assert pairs.gap_variation == pytest.approx(1, abs=0.06)
    # 20 requests in one window of 10 s and none in the next: mean 10, variance 100.
    bursts = found(*(request(20.0 * (number // 20)) for number in range(100)))
    assert bursts.dispersion == pytest.approx(10, abs=0.01)


def test_quantiles_are_exact():
    result = found(*(request(prompt=number) for number in range(1, 10_001)))
    lengths = result.prompt
    assert (lengths.mean, lengths.max) == (5000.5, 10_000)
    assert (lengths.p50, lengths.p90, lengths.p99) == (5000, 9000, 9900)
    assert result.output.p99 == 10


def test_share_of_prompt_tokens_that_were_seen_before():
    # 30 of 100 tokens known; 20 seen before
    prefixes = found(request(blocks=(1, 2, 3)), request(blocks=(1, 2, 4)), request()).prefixes
    assert prefixes is not None
    assert (prefixes.blocks, prefixes.estimated, prefixes.block_tokens) == (4, False, 10)
    assert (prefixes.known_share, prefixes.shared) == pytest.approx((60 / 300, 20 / 300))


def test_a_small_cache_forgets_the_least_recently_used(monkeypatch):
    monkeypatch.setattr(statistics, "RECENT_TOKENS", 20)  # 2 blocks
    prefixes = found(*(request(blocks=blocks) for blocks in ((1, 2), (1, 3), (2,), (3,)))).prefixes
    assert prefixes is not None
    # Seen before: 1, 2 and 3. In the cache: 1 of {1, 2}; then {1, 3}, so 2 is gone and 1 goes; then 3 of {3, 2}.
    assert (prefixes.shared, prefixes.shared_recently) == pytest.approx((30 / 400, 20 / 400))


def test_many_blocks_are_estimated_from_a_sample(monkeypatch):
    monkeypatch.setattr(statistics, "MOST_BLOCKS", 1000)
    new = [request(prompt=1000, blocks=tuple(range(100 * n, 100 * n + 100))) for n in range(200)]
    prefixes = found(*new, *new).prefixes
    assert prefixes is not None
    assert prefixes.estimated
    assert prefixes.blocks == pytest.approx(20_000, rel=0.1)
    assert prefixes.shared == pytest.approx(0.5, rel=0.1)


def test_sessions_and_names():
    first, second = request(session="a", model="m", tenant="t"), request(session="a", model="m")
    result = found(first, second, request(session="b", model="n"))
    assert result.turns is not None
    assert (result.sessions, result.turns.mean, result.turns.max) == (2, 1.5, 2)
    assert (result.models.names, result.models.requests) == (2, {"m": 2, "n": 1})
    assert result.tenants.requests == {"t": 1}
    assert result.objectives.names == 0
