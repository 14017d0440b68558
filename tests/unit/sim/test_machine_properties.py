# SPDX-License-Identifier: Apache-2.0
"""The machine under any sequence of arrivals, departures, synthetic load and time."""

from itertools import accumulate

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.lab.sim.completions import SimMetrics
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import Occupation, OccupationError, SimRequest

PROFILE = SimProfile(
    prefill_tokens_per_second=100,
    attention_tokens=50,
    seconds_per_output_token=0.1,
    max_num_seqs=3,
    max_num_batched_tokens=16,
    block_size=4,
    num_gpu_blocks=16,
    max_model_len=64,
    lora_adapters=("a", "b", "c"),
    max_lora=2,
)


class Traffic(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.machine = Machine(PROFILE, observer=SimMetrics(PROFILE))
        self.now = 0.0
        self.last_at = 0.0
        self.next_id = 0
        self.open: dict[int, SimRequest] = {}
        self.emitted: dict[int, int] = {}
        self.first_tokens: list[int] = []

    @rule(
        prompt=st.text(alphabet="xy", min_size=1, max_size=10),
        tail=st.integers(0, 3),
        output=st.integers(1, 20),
        adapter=st.sampled_from([None, None, "a", "b", "c"]),
        transferred=st.integers(0, 50),
    )
    def submit(self, prompt, tail, output, adapter, transferred):
        prompt_tokens = len(prompt) * PROFILE.block_size + tail
        request = SimRequest(
            request_id=self.next_id,
            prompt_tokens=prompt_tokens,
            output_tokens=output,
            block_hashes=tuple(f"{adapter}{prompt[: length + 1]}".encode() for length in range(len(prompt))),
            lora_adapter=adapter,
            transferred_tokens=transferred,
        )
        self.machine.submit(request)
        self.open[self.next_id] = request
        self.emitted[self.next_id] = 0
        self.next_id += 1

    @rule(seconds=st.floats(0, 2))
    def pass_time(self, seconds):
        self.now += seconds
        self.take(self.machine.advance(self.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        emission = self.machine.abort(request_id)
        assert emission.finish_reason == "abort"
        assert emission.index == self.emitted[request_id]
        del self.open[request_id]

    @rule(running=st.integers(0, 3), waiting=st.integers(0, 2), kv_usage=st.sampled_from([0.0, 0.01, 0.25, 1.0]))
    def occupy(self, running, waiting, kv_usage):
        before = self.machine.kv_usage
        try:
            self.machine.occupy(Occupation(running, waiting, kv_usage))
        except OccupationError:
            assert self.machine.kv_usage == before

    def take(self, emissions):
        for emission in emissions:
            assert self.last_at <= emission.at_seconds <= self.now
            self.last_at = emission.at_seconds
            request = self.open[emission.request_id]
            assert emission.index == self.emitted[emission.request_id]
            assert emission.cached_tokens < request.prompt_tokens
            assert emission.cached_tokens % PROFILE.block_size == 0
            self.emitted[emission.request_id] += 1
            assert (emission.finish_reason is not None) == (self.emitted[emission.request_id] == request.output_tokens)
            if emission.finish_reason is not None:
                del self.open[emission.request_id]

    @invariant()
    def no_more_run_than_there_are_slots(self):
        assert self.machine.running <= PROFILE.max_num_seqs
        assert len(self.machine.running_adapters) <= PROFILE.max_lora
        synthetic = self.machine.occupation
        assert self.machine.running + self.machine.waiting == len(self.open) + synthetic.running + synthetic.waiting

    @invariant()
    def the_present_adapters_are_the_newest_series(self):
        (family,) = self.machine.observer.registry.restricted_registry(["vllm:lora_requests_info"]).collect()
        newest = max(family.samples, key=lambda sample: sample.value)
        assert newest.labels == {
            "max_lora": "2",
            "running_lora_adapters": ",".join(self.machine.running_adapters),
            "waiting_lora_adapters": ",".join(self.machine.waiting_adapters),
        }

    @invariant()
    def idle_machine_without_synthetic_load_has_no_open_request(self):
        if self.machine.next_event_at is None and self.machine.occupation == Occupation():
            assert not self.open

    def teardown(self):
        self.machine.occupy(Occupation())
        while self.machine.next_event_at is not None:
            self.now = self.machine.next_event_at
            self.take(self.machine.advance(self.now))
        assert not self.open
        assert (self.machine.running, self.machine.waiting, self.machine.kv_usage) == (0, 0, 0.0)
        registry = self.machine.observer.registry
        labels = {"engine": "0", "model_name": PROFILE.model}
        series = ({**labels, "finished_reason": reason} for reason in ("stop", "length", "abort"))
        finished = [registry.get_sample_value("vllm:request_success_total", each) for each in series]
        assert sum(finished) == self.next_id


TestTraffic = Traffic.TestCase


_SUBMISSIONS = st.lists(
    st.tuples(
        st.integers(0, 400),  # hundredths of seconds after the one before
        st.text(alphabet="xy", min_size=1, max_size=10),  # blocks of the prompt
        st.integers(1, 20),  # tokens of the answer
        st.sampled_from([None, None, "a", "b", "c"]),
        st.sampled_from([None, None, 150]),  # hundredths of seconds until it is aborted
    ),
    min_size=1,
    max_size=12,
)


_LATE = (0, "yxxxxx", 5, None, None)
_PREEMPTED = [(0, "x", 1, None, None), (4, "x", 6, None, 150), _LATE, _LATE]
"""The last request loses its blocks to the others, and joins again one step later."""


@example(submissions=_PREEMPTED, blocks=16)
@given(submissions=_SUBMISSIONS, blocks=st.sampled_from([16, 18, 40]))
def test_first_and_last_tokens_are_the_same_if_steps_between_them_are_skipped(submissions, blocks):
    profile = msgspec.structs.replace(PROFILE, num_gpu_blocks=blocks, seconds_per_output_token=0.10007)
    every, few = Machine(profile), Machine(profile, every_token=False)
    actions = []
    arrivals = accumulate(each[0] for each in submissions)
    for number, (arrival, (_, prompt, output, adapter, leaves)) in enumerate(zip(arrivals, submissions, strict=True)):
        hashes = tuple(f"{adapter}{prompt[: length + 1]}".encode() for length in range(len(prompt)))
        request = SimRequest(
            request_id=number,
            prompt_tokens=len(prompt) * profile.block_size + number % 4,
            output_tokens=output,
            block_hashes=hashes,
            lora_adapter=adapter,
        )
        # times that no step ends at, within rounding
        actions.append((arrival / 100 + 0.0031 * number, number, request))
        if leaves is not None:
            actions.append(((arrival + leaves) / 100 + 0.0031 * number + 0.0017, number, None))
    found = ([], [])
    for at, number, request in [*sorted(actions, key=lambda each: each[:2]), (1e6, -1, None)]:
        for machine, emissions in zip((every, few), found, strict=True):
            emissions.extend(machine.advance(at))
            if request is not None:
                machine.submit(request)
            elif number >= 0 and (aborted := machine.abort(number)) is not None:
                emissions.append(aborted)
        assert (every.running, every.waiting) == (few.running, few.waiting)
        assert every.kv_usage == pytest.approx(few.kv_usage)
        assert every.cache.hashes == few.cache.hashes or few.kv_usage
    ends = [[each for each in emissions if each.index == 0 or each.finish_reason] for emissions in found]
    assert [each[:2] for each in map(_comparable, ends[0])] == [each[:2] for each in map(_comparable, ends[1])]
    assert [each.at_seconds for each in ends[0]] == pytest.approx([each.at_seconds for each in ends[1]], rel=1e-9)
    assert every.preemptions == few.preemptions
    assert every.adapter_loads == few.adapter_loads


def _comparable(emission):
    return (emission.request_id, emission.index), (emission.cached_tokens, emission.finish_reason), emission.at_seconds
