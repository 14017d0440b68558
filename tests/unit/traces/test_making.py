# SPDX-License-Identifier: Apache-2.0
"""Traces that are made: the same for the same seed, and near the published statistics."""

from itertools import pairwise

import pytest

from epp.lab.traces.formats import checked
from epp.lab.traces.making import WORKLOADS, MadeTrace
from epp.lab.traces.statistics import Statistics, statistics_of
from epp.lab.traces.trace import TraceError


def made(name: str, rate: float = 10.0, seconds: float = 600.0, seed: int = 1) -> MadeTrace:
    return MadeTrace(WORKLOADS[name], rate, seconds, seed)


def statistics(name: str, **options: float) -> Statistics:
    found = statistics_of(made(name, **options))
    assert found is not None
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_makes_the_same_requests_in_order_of_time(name: str):
    trace = made(name, seconds=20)
    requests = list(trace)
    assert list(trace) == requests
    assert list(made(name, seconds=20, seed=2)) != requests
    assert all(one.at <= other.at for one, other in pairwise(requests))
    for request in requests:
        assert checked(request, trace.block_tokens)
        assert request.at < 20


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("azure-code", 1500, 13), ("azure-conv", 1020, 129)], ids=["code", "conversations"]
)
def test_azure_has_the_medians_of_its_paper(name: str, prompt: int, output: int):
    found = statistics(name)
    assert (found.prompt.p50, found.output.p50, found.rate) == pytest.approx((prompt, output, 10), rel=0.1)
    assert found.prefixes is None


def test_code_at_azure_comes_in_bursts():
    found = statistics("azure-code")
    assert found.gap_variation == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize(("name", "prompt", "output"), [("agents", 67_800, 527), ("mooncake", 8596, 182)])
def test_means_are_those_published(name: str, prompt: float, output: float):
    found = statistics(name, seconds=100)
    assert (found.prompt.mean, found.output.mean, found.rate) == pytest.approx((prompt, output, 10), rel=0.25)


def test_half_of_the_prompt_tokens_of_mooncake_are_shared():
    found = statistics("mooncake")
    assert found.prefixes is not None
    assert found.prefixes.block_tokens == 512
    assert 0.45 < found.prefixes.shared < 0.6


def test_turns_of_a_chat_contain_those_before():
    by_session: dict[str, list] = {}
    for request in made("chat"):
        by_session.setdefault(request.session, []).append(request)
    pairs = [pair for turns in by_session.values() for pair in pairwise(turns)]
    assert len(pairs) > 1000
    for earlier, later in pairs:
        assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens
        assert later.blocks[: len(earlier.blocks)] == earlier.blocks


def test_batch_jobs_share_an_instruction():
    requests = list(made("batch", seconds=100))
    assert {request.objective for request in requests} == {"batch"}
    assert len({request.blocks[:24] for request in requests}) <= 20  # instructions of 24 blocks of 64 tokens


@pytest.mark.parametrize(("rate", "seconds"), [(0, 600), (10, 0), (1e6, 1e6), (float("nan"), 1)])
def test_absurd_sizes_are_refused(rate: float, seconds: float):
    with pytest.raises(TraceError, match="rate times duration"):
        made("chat", rate, seconds)
    with pytest.raises(TraceError, match="the rate is too high"):
        made("agents", 1e6, 1)
