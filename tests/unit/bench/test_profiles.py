# SPDX-License-Identifier: Apache-2.0
"""The comparison of profiles in virtual time, and what the ready-made profiles claim by it."""

from collections.abc import Sequence

import pytest

from epp.config import load_text
from epp.config.load import sample_texts
from perf.bench.profiles.fleets import FLEETS, Fleet, fleet
from perf.bench.profiles.outcome import Outcome
from perf.bench.profiles.virtual import simulate
from perf.bench.profiles.workloads import WORKLOADS, trace

pytestmark = pytest.mark.slow

SMALL = fleet("small", a100=3)
SHORT = 36.0


def run(sample: str, servers: Fleet, workload: str, load: float, *, seed: int = 1, seconds: float = SHORT) -> Outcome:
    traffic = trace(workload, servers, load=load, seconds=seconds, seed=seed)
    return simulate(load_text(sample_texts()[sample], sample), servers, traffic)


def run_all(sample: str, servers: Fleet, workload: str, load: float, *, seeds: Sequence[int] = (1, 3, 4)) -> Outcome:
    """Return what became of the requests of several traces together: one alone shows chance as well."""
    outcomes = [run(sample, servers, workload, load, seed=seed) for seed in seeds]
    served = tuple(one for outcome in outcomes for one in outcome.served)
    return Outcome(SHORT * len(outcomes), served, sum(outcome.dollars for outcome in outcomes))


@pytest.mark.parametrize(
    ("workload", "make"), [*((each, "vllm") for each in WORKLOADS), ("long-and-short", "independent")]
)
def test_adaptive_is_no_worse_than_the_default_on_equal_hardware(workload, make):
    default, adaptive = (run_all(sample, SMALL.made(make), workload, 0.7) for sample in ("llm-d-default", "adaptive"))
    assert adaptive.ttft(0.9) <= 1.03 * default.ttft(0.9)
    assert adaptive.mean_ttft <= 1.03 * default.mean_ttft


@pytest.mark.parametrize(("sample", "workload"), [("prefix-heavy", "conversations"), ("least-loaded", "unshared")])
def test_profile_is_better_than_the_default_at_what_it_is_for(sample, workload):
    seeds = (1, 2, 3, 4)
    default, special = (run_all(name, SMALL, workload, 0.7, seeds=seeds) for name in ("llm-d-default", sample))
    assert special.mean_ttft < default.mean_ttft


@pytest.mark.parametrize("load", [0.2, 0.7])
def test_het_3_cost_profile_is_in_time_for_fewer_dollars_than_adaptive(load):
    adaptive, cost = (run(sample, FLEETS["mixed"], "unshared", load) for sample in ("adaptive", "heterogeneous-cost"))
    # expected times are means: of five hundred requests one may be late
    assert cost.over_target <= adaptive.over_target + 1 / 500
    assert cost.dollars < adaptive.dollars
    assert not cost.timeouts


@pytest.mark.timeout(900)  # three runs of a full fleet
def test_het_3_cost_profile_takes_the_fewest_dollars_and_is_seldom_late_on_a_fleet_that_is_overrun():
    default, adaptive, cost = (
        run(sample, FLEETS["mixed"], "conversations", 1.2)
        for sample in ("llm-d-default", "adaptive", "heterogeneous-cost")
    )
    assert cost.over_target < 0.5 * default.over_target
    assert cost.dollars < min(adaptive.dollars, default.dollars)


@pytest.mark.parametrize("sample", sorted(set(sample_texts()) - {"prefill-decode", "mixed-prefill-decode"}))
def test_profile_serves_every_request_of_a_fleet_with_room(sample):
    outcome = run(sample, SMALL, "unshared", 0.2, seconds=27.0)
    assert outcome.counted
    assert not outcome.timeouts
