# SPDX-License-Identifier: Apache-2.0
"""Servers with roles, sessions and several pickers in virtual time, and what the profiles for them claim."""

from dataclasses import replace

import msgspec
import pytest
from profiles.cpu import route_microseconds
from profiles.engines import Independent, Simulated
from profiles.fleets import FLEETS, Fleet, fleet
from profiles.outcome import Outcome
from profiles.virtual import TRANSFER_SECONDS_PER_TOKEN, Simulation
from profiles.workloads import Trace, trace
from run_profiles import Case, refuse_unreal

from epp.config import load_text
from epp.config.load import sample_texts
from epp.framework.roles import Producer
from epp.framework.snapshot import IN_FLIGHT, RUNNING
from epp.lab.sim import SimProfile, SimRequest

pytestmark = pytest.mark.slow

SPLIT = fleet("equal", a100=4).with_roles("split", a100=3)
SECONDS = 36.0


def simulation(sample: str, servers: Fleet, traffic: Trace) -> Simulation:
    return Simulation(load_text(sample_texts()[sample], sample), servers, traffic)


def run(sample: str, servers: Fleet, workload: str, load: float, *, seed: int = 3) -> Outcome:
    return simulation(sample, servers, trace(workload, servers, load=load, seconds=SECONDS, seed=seed)).run()


def alone(workload: str, servers: Fleet) -> Trace:
    """Return a trace of one request."""
    calls = trace(workload, servers, load=0.1, seconds=60.0, seed=1).calls[:1]
    return Trace(workload, calls, 60.0)


PROFILE = SimProfile(
    prefill_tokens_per_second=100.0, seconds_per_output_token=0.1, batch_slope=0.0, max_num_seqs=1, num_gpu_blocks=600
)


@pytest.mark.parametrize("make", [Simulated, Independent])
def test_engine_computes_one_token_of_a_prompt_whose_kv_cache_came_with_it(make):
    engine = make(PROFILE)
    engine.submit(SimRequest(request_id=1, prompt_tokens=100, output_tokens=3, transferred_tokens=100))
    # 1 token at 100 tokens a second, then two steps of 0.1 s
    assert [one.at for one in engine.advance(10.0)] == pytest.approx([0.01, 0.21])


def test_prompt_is_computed_on_a_prefill_server_and_its_answer_on_a_decode_server():
    traffic = alone("documents", SPLIT)
    outcome = simulation("prefill-decode", SPLIT, traffic).run()
    plan = traffic.plan(0).request
    (served,) = outcome.served
    assert served.server == "a100-3"
    worked = {name: seconds for name, seconds in outcome.busy.items() if seconds}
    prompt = plan.prompt_tokens / 7800
    assert sorted(worked.values()) == pytest.approx(
        sorted([prompt, 1 / 7800 + 0.0147 * (plan.output_tokens - 1)]), rel=0.01
    )
    assert worked["a100-3"] == max(worked.values())
    transfer = plan.prompt_tokens * TRANSFER_SECONDS_PER_TOKEN
    # five hops: to the sidecar, to the prefill server and back, with the cache, and the answer
    assert served.ttft == pytest.approx(prompt + transfer + 1 / 7800 + 0.005, abs=0.001)
    assert served.tpot == pytest.approx(0.0147, rel=0.01)


def test_servers_with_roles_are_whole_servers_to_a_profile_that_has_no_legs():
    traffic = alone("documents", SPLIT)
    outcome = simulation("llm-d-default", SPLIT, traffic).run()
    assert sum(seconds > 0 for seconds in outcome.busy.values()) == 1


def test_client_that_leaves_ends_both_legs():
    slow = SPLIT.slowed(200.0)
    traffic = alone("documents", SPLIT)
    one = simulation("prefill-decode", slow, traffic)
    outcome = one.run()
    assert outcome.served[0].ttft is None
    assert all(place.engine.gauges()[:2] == (0, 0) for place in one.places)
    assert all(not replica.store.snapshot().column(IN_FLIGHT).any() for replica in one.replicas)


def test_session_sends_its_instructions_and_what_is_new_alone_and_servers_compute_all():
    calls = trace("sessions", SPLIT, load=0.3, seconds=20.0, seed=1)
    second = next(number for number, call in enumerate(calls.calls) if b"previous_response_id" in call.body)
    call = calls.calls[second]
    first = next(one for one in calls.calls if one.session == call.session)
    sent, prompt = msgspec.json.decode(call.body), msgspec.json.decode(call.prompt)["messages"]
    assert b"previous_response_id" not in first.body
    assert sent["instructions"] == prompt[0]["content"]
    assert [item["content"] for item in sent["input"]] == [prompt[-1]["content"]]
    assert len(prompt) >= 4  # the first question and its answer are between
    assert calls.plan(second).request.prompt_tokens > len(call.body) / 4


def test_client_sends_back_the_token_of_its_session_which_stays_where_it_was():
    servers = fleet("equal", a100=4)
    traffic = trace("sessions", servers, load=0.2, seconds=30.0, seed=1)
    one = simulation("session-sticky", servers, traffic)
    outcome = one.run()
    places: dict[str, set[str]] = {}
    for call, served in zip(traffic.calls, outcome.served, strict=True):
        places.setdefault(call.session, set()).add(served.server)
    assert len(places) > 10
    assert all(len(servers) == 1 for servers in places.values())
    assert len(set.union(*places.values())) == 4


class Watched(Simulation):
    """Notes what its pickers know 1.5 s after its start."""

    def run(self) -> Outcome:
        self.known: list[tuple[float, float]] = []
        self._at(1.5, self._look)
        return super().run()

    def _look(self) -> None:
        for replica in self.replicas:
            snapshot = replica.store.snapshot()
            self.known.append((float(snapshot.column(IN_FLIGHT)[0]), float(snapshot.column(RUNNING)[0])))


def test_picker_beside_others_knows_its_own_requests_alone_and_pages_of_some_age():
    servers = replace(fleet("equal", a100=1), pickers=2, page_seconds=10.0)
    calls = alone("documents", servers).calls * 8
    traffic = Trace("documents", tuple(call._replace(at=at / 100) for at, call in enumerate(calls)), 1.0)
    watched = Watched(load_text(sample_texts()["llm-d-default"], "llm-d-default"), servers, traffic)
    watched.run()
    own, running = zip(*watched.known, strict=True)
    assert sum(own) == 8
    assert min(own) > 0
    assert running == (0.0, 0.0)


@pytest.mark.parametrize(
    ("servers", "workload"), [("split", "unshared"), ("shared", "unshared"), ("equal", "sessions")]
)
def test_comparison_behind_envoy_refuses_what_it_would_leave_out(servers, workload):
    with pytest.raises(SystemExit, match=f"fleet '{servers}' or workload '{workload}' needs: leave --real out"):
        refuse_unreal([Case(servers, "vllm", workload, 0.5, 1, "llm-d-default")])


def test_cpu_time_of_a_request_is_measured_by_profile():
    assert 0 < route_microseconds("random", SPLIT) < 1e6


# What samples claim. Shorter, and on fewer servers, than `make bench-profiles`.


def test_prefill_decode_keeps_the_time_between_tokens_short_while_long_prompts_come_in():
    default, adaptive, special = (
        run(one, FLEETS["split"], "documents", 0.5) for one in ("llm-d-default", "adaptive", "prefill-decode")
    )
    assert special.tpot(0.9) < 0.75 * min(default.tpot(0.9), adaptive.tpot(0.9))
    assert special.ttft(0.9) < default.ttft(0.9)
    assert special.dollars < min(default.dollars, adaptive.dollars)


def test_mixed_prefill_decode_gives_even_answers_for_fewer_dollars_on_two_kinds_of_hardware():
    servers = FLEETS["split-mixed"]
    default, adaptive, equal, special = (
        run(one, servers, "documents", 0.6)
        for one in ("llm-d-default", "adaptive", "prefill-decode", "mixed-prefill-decode")
    )
    assert special.tpot(0.9) < 0.9 * min(default.tpot(0.9), adaptive.tpot(0.9))
    assert special.dollars < 0.9 * min(default.dollars, adaptive.dollars)
    assert special.dollars < equal.dollars
    assert special.ttft(0.9) < 0.75 * min(default.ttft(0.9), equal.ttft(0.9))


def test_sticky_sessions_stay_with_the_history_that_the_body_does_not_show():
    servers = fleet("equal", a100=3)
    default, adaptive, special = (
        run(one, servers, "sessions", 0.5) for one in ("llm-d-default", "adaptive", "session-sticky")
    )
    assert special.ttft(0.9) < 0.25 * min(default.ttft(0.9), adaptive.ttft(0.9))


def test_random_does_not_herd_where_many_pickers_see_old_pages():
    servers = replace(fleet("equal", a100=3), pickers=4, page_seconds=15.0)
    default, special = (run(one, servers, "unshared", 0.6) for one in ("llm-d-default", "random"))
    assert special.ttft(0.9) < 0.25 * default.ttft(0.9)


def test_random_computes_nothing_for_a_request():
    traffic = alone("documents", SPLIT)
    one = simulation("random", SPLIT, traffic)
    pipeline = one.replicas[0].assembly.pipeline
    assert not pipeline.of(Producer)
    one.run()
