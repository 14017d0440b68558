# SPDX-License-Identifier: Apache-2.0
"""The comparison of profiles in virtual time, and what the ready-made profiles claim by it."""

from collections.abc import Sequence

import msgspec
import pytest
from profiles.engines import Event, Independent, Simulated
from profiles.fleets import FLEETS, Fleet, fleet
from profiles.outcome import Outcome, Served, Target
from profiles.virtual import simulate
from profiles.workloads import WORKLOADS, requests_per_second, trace

from epp.config import load_text
from epp.config.load import sample_texts
from epp.lab.sim import SimProfile, SimRequest

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


def test_equal_seeds_give_equal_outcomes_whatever_the_machine_is_busy_with():
    first, second = (run("adaptive", SMALL, "conversations", 0.5, seconds=12.0) for _ in range(2))
    assert first == second
    assert len(first.served) > 30
    assert all(one.ttft is not None for one in first.served)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_traffic_depends_on_the_seed_alone_and_comes_at_the_rate_asked_for(workload):
    some, same, other = (trace(workload, SMALL, load=0.5, seconds=200.0, seed=seed) for seed in (1, 1, 2))
    assert some == same != other
    assert [call.at for call in some.calls] == sorted(call.at for call in some.calls)
    wanted = 0.5 * requests_per_second(SMALL, workload) * 200.0
    assert 0.8 * wanted < len(some.calls) < 1.2 * wanted  # a conversation that began late is not at its end


def test_conversation_repeats_what_was_said_before_and_the_answer_of_the_server():
    calls = trace("conversations", SMALL, load=0.5, seconds=30.0, seed=1)
    messages = [msgspec.json.decode(call.body)["messages"] for call in calls.calls]
    long = max(messages, key=len)
    assert long[:-2] in messages
    before = messages.index(long[:-2])
    assert long[-2]["content"] == "".join(calls.plan(before).words)


PROFILE = SimProfile(
    prefill_tokens_per_second=100.0,
    seconds_per_output_token=0.1,
    batch_slope=0.0,
    max_num_seqs=1,
    num_gpu_blocks=600,
)


def request(number: int) -> SimRequest:
    return SimRequest(request_id=number, prompt_tokens=100, output_tokens=3)


@pytest.mark.parametrize("make", [Simulated, Independent])
def test_engine_works_as_long_as_its_profile_says_and_counts_that(make):
    engine = make(PROFILE)
    engine.submit(request(1))
    engine.submit(request(2))
    engine.advance(0.5)
    assert engine.gauges()[:2] == (1, 1)
    # a prompt takes 1 s, two further tokens 0.2 s; the second request has a place after the first
    events = engine.advance(10.0)
    assert [(one.request_id, one.ended) for one in events] == [(1, False), (1, True), (2, False), (2, True)]
    assert [one.at for one in events] == pytest.approx([1.0, 1.2, 2.2, 2.4])
    assert engine.gauges() == (0, 0, 0.0)
    assert engine.next_event_at is None


def test_requests_of_independent_engines_do_not_slow_each_other():
    engine = Independent(msgspec.structs.replace(PROFILE, max_num_seqs=2))
    engine.submit(request(1))
    engine.submit(request(2))
    assert engine.advance(1.0) == [Event(1, 1.0, ended=False), Event(2, 1.0, ended=False)]


def test_engine_is_busy_until_its_last_request_has_ended_or_left():
    engine = Simulated(PROFILE)
    engine.advance(5.0)
    engine.submit(request(1))
    engine.advance(5.5)
    engine.abort(1)
    while engine.next_event_at is not None:
        engine.advance(engine.next_event_at)
    engine.advance(20.0)
    assert 0.5 <= engine.busy_seconds <= 1.0  # the step under way is finished


def test_outcome_counts_what_is_late_and_what_never_came():
    served = tuple(Served(30.0, "a", ttft, tpot) for ttft, tpot in ((0.5, 0.01), (1.5, 0.01), (0.5, 0.2), (None, None)))
    outcome = Outcome(60.0, (Served(1.0, "a", 9.0, 0.01), *served), dollars=2.0, target=Target(1.0, 0.1))
    assert outcome.over_target == 0.75
    assert outcome.timeouts == 0.25
    assert outcome.ttft(0.5) == 1.5
    assert outcome.dollars_per_1000 == 400.0


@pytest.mark.parametrize(
    ("workload", "make"), [*((each, "vllm") for each in WORKLOADS), ("long-and-short", "independent")]
)
def test_adaptive_is_no_worse_than_the_default_on_equal_hardware(workload, make):
    default, adaptive = (run_all(sample, SMALL.made(make), workload, 0.7) for sample in ("llm-d-default", "adaptive"))
    assert adaptive.ttft(0.9) <= 1.03 * default.ttft(0.9)
    assert adaptive.mean_ttft <= 1.03 * default.mean_ttft


@pytest.mark.parametrize(("sample", "workload"), [("prefix-heavy", "conversations"), ("least-loaded", "unshared")])
def test_profile_is_better_than_the_default_at_what_it_is_for(sample, workload):
    default, special = (run_all(name, SMALL, workload, 0.7) for name in ("llm-d-default", sample))
    assert special.ttft(0.9) < default.ttft(0.9)


@pytest.mark.parametrize("load", [0.2, 0.7])
def test_het_3_cost_profile_is_in_time_for_fewer_dollars_than_adaptive(load):
    adaptive, cost = (
        run_all(sample, FLEETS["mixed"], "unshared", load) for sample in ("adaptive", "heterogeneous-cost")
    )
    # expected times are means: of five hundred requests one may be late
    assert cost.over_target <= adaptive.over_target + 1 / 500
    assert cost.dollars < adaptive.dollars
    assert not cost.timeouts


@pytest.mark.timeout(900)  # four runs of a full fleet
@pytest.mark.parametrize("workload", ["conversations", "unshared"])
def test_het_3_cost_profile_takes_fewer_dollars_and_is_no_later_on_a_fleet_that_is_overrun(workload):
    adaptive, cost = (
        run_all(sample, FLEETS["mixed"], workload, 1.2, seeds=(3, 4)) for sample in ("adaptive", "heterogeneous-cost")
    )
    assert cost.over_target <= adaptive.over_target
    assert cost.mean_ttft < adaptive.mean_ttft
    assert cost.dollars < adaptive.dollars


@pytest.mark.parametrize("sample", sorted(set(sample_texts()) - {"prefill-decode", "mixed-prefill-decode"}))
def test_profile_serves_every_request_of_a_fleet_with_room(sample):
    outcome = run(sample, SMALL, "unshared", 0.2, seconds=27.0)
    assert outcome.counted
    assert not outcome.timeouts
