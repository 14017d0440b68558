# SPDX-License-Identifier: Apache-2.0
"""The machine in virtual time: hand-computed examples, then any sequence of requests."""

import msgspec
import pytest

from epp.lab.sim.completions import SimMetrics
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import Emission, Occupation, OccupationError, SimRequest

# 100 prompt tokens take 1 s; decode steps take 0.1 s for one request, 0.15 s for two, 0.2 s for three.
PROFILE = SimProfile(
    prefill_tokens_per_second=100,
    seconds_per_output_token=0.1,
    batch_slope=0.5,
    max_num_seqs=3,
    max_num_batched_tokens=1000,
    block_size=10,
    num_gpu_blocks=100,
    max_model_len=1000,
    lora_adapters=("a", "b"),
    max_lora=1,
)


REASONS = ("stop", "length", "abort")


def profile(**changes) -> SimProfile:
    return msgspec.structs.replace(PROFILE, **changes)


def request(request_id: int, *, prompt: int = 100, output: int = 3, hashes: str = "", lora: str | None = None):
    return SimRequest(
        request_id=request_id,
        prompt_tokens=prompt,
        output_tokens=output,
        block_hashes=tuple(hashes[: length + 1].encode() for length in range(len(hashes))),
        lora_adapter=lora,
    )


def times(emissions: list[Emission], request_id: int) -> list[float]:
    return pytest.approx([item.at_seconds for item in emissions if item.request_id == request_id])


def sample(machine: Machine, name: str, **labels: str) -> float | None:
    """The value of one series on the machine's metrics page."""
    labels = {"engine": "0", "model_name": PROFILE.model, **labels}
    return machine.observer.registry.get_sample_value(f"vllm:{name}", labels)


def test_one_request_takes_its_prefill_and_one_step_per_further_token():
    machine = Machine(PROFILE)
    machine.submit(request(1))
    assert machine.next_event_at == 1.0
    emissions = machine.advance(10)
    assert times(emissions, 1) == [1.0, 1.1, 1.2]
    assert [item.index for item in emissions] == [0, 1, 2]
    assert [item.finish_reason for item in emissions] == [None, None, "stop"]
    assert machine.next_event_at is None
    assert (machine.running, machine.kv_usage) == (0, 0.0)


def test_a_prompt_that_arrives_stalls_those_who_decode_for_one_step():
    machine = Machine(PROFILE)
    machine.submit(request(1, output=4))
    machine.advance(1.05)
    machine.submit(request(2, prompt=20, output=2))
    emissions = machine.advance(10)
    # 1: 1.1 by itself; then 20 prompt tokens (0.2 s) and one decode (0.1 s): 1.4; then two decode together: 1.55.
    assert times(emissions, 1) == [1.1, 1.4, 1.55]
    assert times(emissions, 2) == [1.4, 1.55]


def test_a_long_prompt_is_computed_in_chunks_between_which_others_decode():
    machine = Machine(profile(max_num_batched_tokens=51))
    machine.submit(request(1, prompt=10, output=4))
    machine.advance(0.1)
    machine.submit(request(2, prompt=110, output=1))
    emissions = machine.advance(10)
    # Request 1 alone: 0.2. Then steps of 1 + 50 tokens, 0.1 + 0.5 s: 0.8 and 1.4; then the last 10 of request 2.
    assert times(emissions, 1) == [0.2, 0.8, 1.4]
    assert times(emissions, 2) == [1.5]


@pytest.mark.parametrize("chunk", [1000, 40])
def test_attention_makes_later_tokens_of_a_prompt_slower(chunk):
    machine = Machine(profile(attention_tokens=200, max_num_batched_tokens=chunk))
    machine.submit(request(1, prompt=100, output=1, hashes="0123456789"))
    # 100 tokens, of which the mean has 50 before it: 100 * (1 + 50 / 200) = 125, in chunks or at once.
    assert times(machine.advance(10), 1) == [1.25]
    machine.submit(request(2, prompt=100, output=1, hashes="01234xxxxx"))
    # 50 tokens, of which the mean has 75 before it: 50 * (1 + 75 / 200) = 68.75.
    assert times(machine.advance(20), 2) == [10.6875]


@pytest.mark.parametrize(
    ("hashes", "cached", "seconds"),
    [
        ("01234xxxxx", 50, 0.5),  # five blocks of ten are found, 50 tokens are left
        ("0123456789", 90, 0.1),  # block 10 ends with the last token, which must be computed
    ],
)
def test_a_cached_prefix_is_not_computed_again(hashes, cached, seconds):
    machine = Machine(PROFILE, observer=SimMetrics(PROFILE))
    machine.submit(request(1, prompt=100, hashes="0123456789"))
    machine.advance(10)
    machine.submit(request(2, prompt=100, hashes=hashes))
    first, *_ = machine.advance(20)
    assert (first.at_seconds, first.cached_tokens) == (10 + seconds, cached)
    assert sample(machine, "prefix_cache_queries_total") == 200
    assert sample(machine, "prefix_cache_hits_total") == cached


@pytest.mark.parametrize(
    ("tier", "seconds"),
    [({"num_host_blocks": 5, "host_gbps": 1}, 0.5), ({"num_disk_blocks": 5, "disk_gbps": 0.5}, 1.0)],
    ids=["copied from host memory", "read from the disk"],
)
def test_blocks_of_a_lower_tier_come_at_its_bandwidth(tier, seconds):
    # 50 tokens of 10 MB each take 0.5 s at 1 GB/s; the other 50 tokens are computed in 0.5 s
    machine = Machine(profile(kv_bytes_per_token=10_000_000, **tier))
    machine.submit(request(1, prompt=50, output=1, hashes="abcde"))
    machine.submit(request(2, prompt=995, output=1))
    machine.advance(20)
    again = request(3, prompt=100, output=1, hashes="abcdefghij")
    assert machine.prompt_work(again) == (50, seconds)
    machine.submit(again)
    (emission,) = machine.advance(40)
    assert (emission.at_seconds, emission.cached_tokens) == (pytest.approx(20.5 + seconds), 50)


def test_prompt_whose_kv_cache_came_from_elsewhere_computes_its_last_token_and_is_cached_here():
    machine = Machine(PROFILE)
    first = request(1, prompt=100, output=1, hashes="abcdefghij")
    machine.submit(msgspec.structs.replace(first, transferred_tokens=100))
    assert times(machine.advance(1), 1) == [0.01]
    machine.submit(request(2, prompt=105, output=1, hashes="abcdefghij"))
    (emission,) = machine.advance(2)
    assert emission.cached_tokens == 100
    assert emission.at_seconds == pytest.approx(1.05)


def test_generated_tokens_are_cached_as_well():
    machine = Machine(PROFILE)
    machine.submit(request(1, prompt=15, output=6, hashes="01"))  # 15 + 5 tokens: two full blocks
    machine.advance(10)
    machine.submit(request(2, prompt=21, output=1, hashes="01"))
    assert machine.advance(20)[0].cached_tokens == 20


def test_a_full_batch_makes_the_rest_wait_in_order():
    machine = Machine(PROFILE)
    for request_id in range(5):
        machine.submit(request(request_id, prompt=100, output=1))
    assert (machine.running, machine.waiting) == (1, 4)  # the others join when the step ends
    emissions = machine.advance(100)
    # Alone until 1.0; then three prompts in one step, 3 s; then the fifth.
    assert [(item.request_id, item.at_seconds) for item in emissions] == [(0, 1), (1, 4), (2, 4), (3, 4), (4, 5)]


def test_a_request_waits_until_its_prompt_fits_in_the_cache():
    machine = Machine(profile(num_gpu_blocks=10, max_model_len=100))
    machine.submit(request(1, prompt=50, output=11))  # 60 tokens in the end: 6 blocks
    machine.submit(request(2, prompt=50, output=1))  # 5 blocks
    machine.submit(request(3, prompt=10, output=1))  # would fit, but keeps its place in the queue
    machine.advance(0.5)
    assert (machine.running, machine.waiting) == (1, 2)
    assert machine.kv_usage == 0.6  # the sixth block came with token 51
    machine.advance(1.4)
    assert (machine.running, machine.waiting) == (1, 2)
    machine.advance(1.51)  # ten steps of 0.1 s after the first token end at 1.5
    assert (machine.running, machine.waiting) == (2, 0)


def test_request_that_joined_last_loses_its_blocks_to_an_answer_and_is_computed_again():
    machine = Machine(profile(num_gpu_blocks=4, max_model_len=40))
    machine.submit(request(1, prompt=10, output=12))
    machine.submit(request(2, prompt=10, output=12))
    emissions = machine.advance(0.3)  # prompts of 0.1 s each; request 2 joined beside the first decode step
    assert (machine.running, machine.waiting) == (2, 0)
    emissions += machine.advance(20.0)
    assert machine.preemptions == 1
    first, second = ([one for one in emissions if one.request_id == number] for number in (1, 2))
    assert [one.index for one in first] == [one.index for one in second] == list(range(12))
    # Request 1 needs a third block for token 21, its own eleventh, and leaves after one more.
    assert first[-1].at_seconds < second[10].at_seconds


def test_adapter_is_loaded_before_its_first_request_and_again_after_another_took_its_place():
    machine = Machine(profile(lora_load_seconds=0.5))
    for number, adapter in enumerate(("a", "a", "b", "a")):
        machine.submit(request(number, output=1, lora=adapter))
        # the prompt takes 1 s; the second request finds the adapter
        (emission,) = machine.advance(machine.now + 2.0)
        assert emission.at_seconds == pytest.approx(2.0 * number + (1.0 if number == 1 else 1.5))
    assert machine.adapter_loads == 3


def test_a_request_without_an_adapter_slot_lets_others_pass():
    machine = Machine(PROFILE)
    machine.submit(request(1, lora="a", output=2))
    machine.submit(request(2, lora="b", output=1))
    machine.submit(request(3, output=1))
    machine.advance(1.0)
    assert (machine.running_adapters, machine.waiting_adapters) == (("a",), ("b",))
    assert (machine.running, machine.waiting) == (2, 1)
    emissions = machine.advance(10)
    # 1.0 + prefill of request 3 and one decode: 2.1; only then is the slot free: 3.1.
    assert times(emissions, 3) == [2.1]
    assert times(emissions, 2) == [3.1]


def test_abort_frees_place_and_blocks_at_once():
    machine = Machine(PROFILE, observer=SimMetrics(PROFILE))
    machine.submit(request(1))
    machine.advance(1.15)
    aborted = machine.abort(1)
    assert aborted == Emission(1, 2, 1.15, 0, "abort")
    assert (machine.running, machine.kv_usage) == (0, 0.0)
    assert machine.advance(10) == []
    assert machine.abort(1) is None
    finished = {reason: sample(machine, "request_success_total", finished_reason=reason) for reason in REASONS}
    assert finished == {"stop": 0, "length": 0, "abort": 1}


def test_occupation_shows_in_every_gauge_and_slows_decoding():
    machine = Machine(PROFILE)
    machine.occupy(Occupation(running=2, waiting=7, kv_usage=0.5, lora_adapter="a"))
    assert (machine.running, machine.waiting, machine.kv_usage) == (2, 7, 0.5)
    assert (machine.running_adapters, machine.waiting_adapters) == (("a",), ("a",))
    machine.submit(request(1, output=2))
    # Decoding as one of three: 0.1 * (1 + 0.5 * 2) = 0.2 s.
    assert times(machine.advance(10), 1) == [1.0, 1.2]


def test_a_fully_occupied_server_serves_no_request_until_it_is_released():
    machine = Machine(PROFILE)
    machine.occupy(Occupation(running=3))
    machine.submit(request(1, output=1))
    assert machine.advance(100) == []
    assert (machine.running, machine.waiting) == (3, 1)
    machine.occupy(Occupation())
    assert times(machine.advance(200), 1) == [101.0]


@pytest.mark.parametrize(
    ("occupation", "message"),
    [
        (Occupation(running=3), "running 3 must be 0 to 2"),
        (Occupation(waiting=-1), "waiting -1"),
        (Occupation(kv_usage=1.5), "kv_usage 1.5 must be 0 to 1"),
        (Occupation(kv_usage=0.95), "kv_usage 0.95 is more than"),
        (Occupation(lora_adapter="c"), "lora_adapter 'c' is not one of"),
        (Occupation(running=1, lora_adapter="b"), "lora_adapter 'b' has no free slot: max_lora is 1"),
    ],
)
def test_occupation_that_does_not_fit_changes_nothing(occupation, message):
    machine = Machine(PROFILE)
    machine.occupy(Occupation(running=1, kv_usage=0.2))
    machine.submit(request(1, lora="a"))  # 102 tokens in the end: 11 blocks
    with pytest.raises(OccupationError, match=message):
        machine.occupy(occupation)
    assert machine.occupation == Occupation(running=1, kv_usage=0.2)
    assert machine.kv_usage == pytest.approx(0.3)  # 0.2 and the ten blocks of the prompt


def test_metrics_count_tokens_and_seconds():
    machine = Machine(PROFILE, observer=SimMetrics(PROFILE))
    machine.submit(request(1, prompt=100, output=3))
    machine.advance(10)
    assert sample(machine, "prompt_tokens_total") == 100
    assert sample(machine, "generation_tokens_total") == 3
    assert sample(machine, "time_to_first_token_seconds_sum") == pytest.approx(1.0)
    assert sample(machine, "e2e_request_latency_seconds_sum") == pytest.approx(1.2)
    assert sample(machine, "inter_token_latency_seconds_sum") == pytest.approx(0.2)
    assert sample(machine, "time_to_first_token_seconds_bucket", le="0.75") == 0
    assert sample(machine, "time_to_first_token_seconds_bucket", le="1.0") == 1


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (request(1), "request id 1 is negative or in use"),
        (request(2, prompt=0), "at least one prompt token"),
        (request(2, prompt=999, output=2), "more than max_model_len 1000"),
    ],
)
def test_requests_that_can_never_run_are_refused(refused, message):
    machine = Machine(PROFILE)
    machine.submit(request(1))
    with pytest.raises(ValueError, match=message):
        machine.submit(refused)
    with pytest.raises(ValueError, match="time must not go back"):
        machine.advance(-1)
