# SPDX-License-Identifier: Apache-2.0
"""Rates of endpoints: from profiles at first, then from their responses."""

import math
import random

import msgspec
import numpy as np
import pytest

from epp.framework import (
    Candidates,
    ConfigurationError,
    Destination,
    Endpoint,
    Headers,
    ManualClock,
    PrefixMatch,
    ProfileResult,
    Request,
    RequestBody,
    Response,
    SchedulingResult,
    Usage,
)
from epp.framework.accelerators.tag import AcceleratorTag, Cost, Performance
from epp.framework.datalayer import Report
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT_TOKENS, RUNNING
from epp.framework.testing import candidates
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp.routing.datastore import Datastore

H100 = AcceleratorTag(model="h100", vendor="nvidia", count=2, performance=Performance(fp16=989), bandwidth_gbps=3350)
T4 = AcceleratorTag(model="t4", vendor="nvidia", count=1, performance=Performance(fp16=65), bandwidth_gbps=320)
MODEL = "Qwen/Qwen3-32B"


class World:
    """A pool, a clock, and endpoints that answer as fast as they really are."""

    def __init__(self, *tags, **parameters):
        self.clock = ManualClock()
        registry = Registry({})
        registry.register(EndpointRatesProducer)
        parameters = {"halfLife": "10000h"} | parameters  # so that a second takes nothing away
        self.plugin = registry.build("endpoint-rates-producer", parameters, name="mine", clock=self.clock)
        self.labels = [{} for _ in tags]
        self.retag(*tags)

    def retag(self, *tags):
        self.pool = candidates(
            records={ACCELERATOR: tags}, labels=self.labels, in_flight_tokens=[0] * len(tags), running=[0] * len(tags)
        )

    def rates(self, model=MODEL):
        request = Request("r", RequestBody(model=model))
        self.plugin.produce(request, self.pool)
        return request.get(ENDPOINT_RATES)

    def prefill(self, slot=0):
        return float(self.rates().prefill_tokens_per_second[slot])

    def send(self, slot=0, *, tokens=1000, in_flight=0, cached_blocks=0, streaming=True, extra_legs=()):
        request = Request("r", RequestBody(model=MODEL, prompt_tokens=tokens, streaming=streaming))
        if cached_blocks:
            blocks = np.full(len(self.pool), cached_blocks, dtype=np.int32)
            request.put(PREFIX_MATCH, PrefixMatch(blocks, tokens // 64, block_tokens=64))
        waiting = self.pool.snapshot.columns[IN_FLIGHT_TOKENS.name]
        waiting.flags.writeable = True  # for what the datastore does in a running picker
        waiting[slot] = in_flight
        waiting.flags.writeable = False
        self.plugin.produce(request, self.pool)
        legs = {name: self._leg(name, other) for name, other in (("default", slot), *extra_legs)}
        self.plugin.pre_request(request, SchedulingResult(Destination(legs["default"]), legs, {}))
        return request

    def answer(self, request, seconds, *, served=None, status=200, itl=None, tokens=0):
        response = Response(self.pool[0 if served is None else served], "", status, Headers(), Usage(0, tokens, 0))
        self.plugin.first_token(request, response, seconds)
        if itl is not None:
            self.plugin.ended(request, response, itl * (tokens - 1))

    def stream(self, events, itl, *, tokens=None):
        """Answer with a stream of so many tokens' events; `usage` has the tokens, if they are given."""
        usage = None if tokens is None else Usage(0, tokens, 0)
        response = Response(self.pool[0], "", 200, Headers(), usage, events=events + 2)
        self.plugin.ended(self.send(), response, itl * events)
        self.clock.advance(1)

    def learn(self, rate, *, times=5, slot=0, tokens=1000):
        for _ in range(times):
            self.answer(self.send(slot, tokens=tokens), tokens / rate, served=slot)
        self.clock.advance(1)

    def _leg(self, name, slot):
        return ProfileResult(name, self.pool, np.zeros(len(self.pool)), np.array([slot], dtype=np.intp))


def _provenance(rates, slot, rate):
    samples = getattr(rates, f"{rate}_samples")[slot]
    return f"learned ({samples} samples)" if samples else rates.sources[rates.kinds[slot]][rate == "itl"]


def test_rates_start_from_profiles_and_say_which():
    rates = World(H100, T4).rates()
    assert rates.prefill_tokens_per_second.tolist() == pytest.approx([15928, 523.4], abs=0.1)
    assert _provenance(rates, 0, "prefill") == "profile qwen3-32b/h100/vllm/2"
    assert _provenance(rates, 1, "prefill") == "scaled from h100 by TFLOPS"
    assert _provenance(rates, 0, "itl") == "profile */h100 x2"


def test_unknown_hardware_has_the_median_of_the_others():
    rates = World(H100, AcceleratorTag(), AcceleratorTag(model="h100", count=4)).rates()
    assert rates.prefill_tokens_per_second.tolist() == [15928, (15928 + 2 * 15928) / 2, 2 * 15928]
    assert _provenance(rates, 1, "prefill") == "median of the pool"


def test_pool_of_which_nothing_is_known_has_the_default():
    rates = World(AcceleratorTag(), AcceleratorTag()).rates()
    assert rates.prefill_tokens_per_second.tolist() == [15928, 15928]
    assert _provenance(rates, 0, "prefill") == "default"


def test_het_4_time_to_the_first_token_teaches_the_prefill_rate():
    world = World(H100)
    world.learn(5000)
    assert world.prefill() == pytest.approx(5000)
    assert _provenance(world.rates(), 0, "prefill") == "learned (5 samples)"


def test_het_4_decode_speed_is_learned_from_streams_without_usage():
    world = World(H100)
    for _ in range(24):
        world.stream(160, 0.05)
    assert _provenance(world.rates(), 0, "itl") == "learned (24 samples)"
    assert world.plugin.dump_state(world.pool.snapshot)["outputTokens"] == 160


def test_het_4_tokens_of_an_event_are_learned_from_streams_that_have_both():
    world = World(H100)
    world.stream(50, 0.05, tokens=200)
    world.stream(100, 0.05)
    assert world.plugin.dump_state(world.pool.snapshot)["outputTokens"] == (200 + 400) / 2


def test_het_4_fewer_samples_than_the_least_number_teach_nothing():
    world = World(H100, minSamples=5)
    world.learn(5000, times=4)
    assert world.prefill() == 15928


def test_het_4_tokens_ahead_in_flight_count_and_cached_ones_do_not():
    world = World(H100)
    for _ in range(5):
        # 3000 ahead and 1000 - 10 * 64 = 360 of its own in 0.5 s
        world.answer(world.send(tokens=1000, in_flight=3000, cached_blocks=10), 0.5)
    world.clock.advance(1)
    assert world.prefill() == pytest.approx(3360 / 0.5)


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ({"tokens": 255}, {}),
        ({"tokens": 1000, "cached_blocks": 12}, {}),  # 1000 - 768 = 232
        ({"streaming": False}, {}),
        ({"extra_legs": (("prefill", 1),)}, {}),
        ({}, {"served": 1}),
        ({}, {"status": 500}),
        ({}, {"seconds": 0.0}),
    ],
    ids=["short", "mostly cached", "not streamed", "two endpoints", "served elsewhere", "failed", "in no time"],
)
def test_het_4_response_that_tells_nothing_teaches_nothing(sent, answered):
    world = World(H100, T4)
    for _ in range(10):
        world.answer(world.send(**sent), **({"seconds": 0.2} | answered))
    world.clock.advance(1)
    assert world.rates().prefill_tokens_per_second.tolist() == pytest.approx([15928, 523.4], abs=0.1)


def test_het_4_time_between_tokens_teaches_the_itl():
    world = World(H100)
    for _ in range(5):
        world.answer(world.send(tokens=10), 0.1, itl=0.020, tokens=101)
    world.clock.advance(1)
    # profile: (10 + 5 / 64 * batch) / 2 ms, batch 1
    rates = world.rates()
    assert rates.itl_seconds(world.pool, np.ones(1)).tolist() == pytest.approx([0.020])
    assert _provenance(rates, 0, "itl") == "learned (5 samples)"
    assert _provenance(rates, 0, "prefill") == "profile qwen3-32b/h100/vllm/2"


def test_het_4_length_of_answers_is_learned():
    world = World(H100)
    assert world.rates().output_tokens == 200
    for tokens in (100, 20, 60):
        world.answer(world.send(), 0.1, itl=0.01, tokens=tokens)
    world.clock.advance(1)
    assert world.rates().output_tokens == pytest.approx(60)


def test_het_4_few_generated_tokens_teach_nothing():
    world = World(H100)
    for _ in range(5):
        world.answer(world.send(tokens=10), 0.1, itl=0.020, tokens=15)
    world.clock.advance(1)
    assert world.rates().itl_base_seconds.tolist() == pytest.approx([0.005])


def test_het_4_endpoints_not_yet_seen_are_taken_to_be_like_those_seen():
    world = World(H100, H100, T4)
    world.learn(15928 / 4)
    # the profile is 4 times too high for this pool: for the other H100, and failing better for the T4
    rates = world.rates()
    assert rates.prefill_tokens_per_second.tolist() == pytest.approx([3982, 3982, 523.4 / 4], abs=0.1)
    assert _provenance(rates, 1, "prefill") == "profile qwen3-32b/h100/vllm/2, times the ratio learned from others"


def test_het_4_other_endpoints_of_one_kind_have_its_ratio_and_not_anothers():
    world = World(H100, H100, T4, T4)
    world.learn(15928 * 2)
    world.learn(300, slot=2)
    assert world.rates().prefill_tokens_per_second.tolist() == pytest.approx([31856, 31856, 300, 300])


@pytest.mark.parametrize("seed", range(4))
def test_het_4_learning_converges_in_spite_of_noise_and_outliers(seed):
    rng = random.Random(seed)
    true_rate, world = 6000.0, World(H100)
    for _ in range(200):
        tokens, in_flight = rng.randint(300, 8000), rng.choice([0, 0, 2000, 10_000])
        seconds = (tokens + in_flight) / true_rate * rng.lognormvariate(0, 0.25)
        if rng.random() < 0.1:
            seconds *= rng.choice([0.05, 20.0])
        world.answer(world.send(tokens=tokens, in_flight=in_flight), seconds)
        world.clock.advance(0.5)
    # The median of 31 samples with a deviation of 0.25 has one of 1.25 * 0.25 / sqrt(31) = 0.056; three of them
    assert abs(math.log(world.prefill() / true_rate)) < 0.17


def test_het_4_learning_follows_an_endpoint_that_becomes_slower():
    world = World(H100)
    world.learn(12_000, times=31)
    world.learn(3000, times=16)  # the majority of the last 31
    assert world.prefill() == pytest.approx(3000)


def test_het_4_what_was_learned_decays_towards_the_profile():
    world = World(H100, halfLife="10m")
    world.learn(15928 / 16)
    world.clock.advance(599)
    assert world.prefill() == pytest.approx(15928 / 4)
    world.clock.advance(1000)
    assert world.prefill() == 15928
    assert _provenance(world.rates(), 0, "prefill") == "profile qwen3-32b/h100/vllm/2"


def test_het_4_hardware_that_changes_is_learned_anew():
    world = World(H100, T4)
    world.learn(5000)
    world.retag(msgspec.structs.replace(H100, count=4), T4)
    assert world.prefill() == 2 * 15928


def test_het_4_price_or_state_that_changes_leaves_what_was_learned():
    world = World(H100, T4)
    world.learn(5000)
    world.retag(msgspec.structs.replace(H100, cost=Cost(per_hour=2.0), reason="moved"), T4)
    assert world.prefill() == pytest.approx(5000)


@pytest.mark.parametrize("what", ["epp/boot-id", "epp/pod-uid"])
def test_is_11_pod_that_is_another_or_node_that_was_booted_is_learned_anew(what):
    first, second = (msgspec.structs.replace(H100, attributes={what: name}) for name in ("first", "second"))
    world = World(first)
    world.learn(5000)
    world.retag(msgspec.structs.replace(first, reason="moved"))
    assert world.prefill() == pytest.approx(5000)
    world.retag(second)
    assert world.prefill() == 15928


def test_is_11_pod_that_only_comes_to_be_known_keeps_what_was_learned():
    world = World(H100)
    world.learn(5000)
    world.retag(msgspec.structs.replace(H100, attributes={"epp/pod-uid": "first"}))
    assert world.prefill() == pytest.approx(5000)


def test_het_4_engine_that_changes_is_learned_anew():
    world = World(H100)
    world.learn(5000)
    world.labels = [{"llm-d.ai/engine-type": "sglang"}]
    world.retag(H100)
    assert _provenance(world.rates(), 0, "prefill") == "profile qwen3-32b/h100/sglang/2"
    assert world.prefill() == 15360


def test_het_4_endpoint_that_leaves_takes_along_what_was_learned_and_what_is_on_its_way():
    world = World(H100)
    world.learn(5000)
    on_its_way = [world.send() for _ in range(5)]
    world.plugin.slots_removed([0])
    for request in on_its_way:
        world.answer(request, 0.01)
    world.clock.advance(1)
    assert world.prefill() == 15928


def test_learning_can_be_turned_off():
    world = World(H100, learn=False)
    world.learn(5000)
    assert world.prefill() == 15928


def test_same_rates_are_published_until_there_is_news():
    world = World(H100)
    first = world.rates()
    world.clock.advance(1000)
    assert world.rates() is first
    world.learn(5000)
    learned = world.rates()
    assert learned is not first
    world.answer(world.send(), 1.0)
    assert world.rates() is learned  # not for each response: ten times a second at most
    world.clock.advance(0.1)
    assert world.rates() is not learned


def test_what_endpoints_report_does_not_make_rates_be_computed_anew():
    store, world = Datastore(ManualClock()), World(H100)
    endpoint = Endpoint("e0", "10.0.0.1", 8000)
    store.replace([endpoint])
    store.tag(endpoint, Report(attributes={ACCELERATOR: H100}))
    published = []
    for running in (1.0, 2.0):
        store.report(endpoint, Report(columns={RUNNING: running}))
        snapshot, request = store.snapshot(), Request("r", RequestBody(model=MODEL))
        world.plugin.produce(request, Candidates(snapshot, snapshot.slots))
        published.append(request.get(ENDPOINT_RATES))
    assert published[0] is published[1]
    assert _provenance(published[0], 0, "prefill") == "profile qwen3-32b/h100/vllm/2"


def test_adapters_use_the_profiles_of_their_base():
    world = World(H100, baseModel="Qwen3-32B")
    assert _provenance(world.rates("my-adapter"), 0, "prefill") == "profile qwen3-32b/h100/vllm/2"
    assert _provenance(World(H100).rates("my-adapter"), 0, "prefill") == "profile */h100 x2"


def test_profiles_are_read_from_a_file_and_those_in_the_configuration_go_first(tmp_path):
    file = tmp_path / "profiles.yaml"
    file.write_text(
        "- {model: qwen3-32b, accelerator: h100, tensorParallel: 2, prefillTokensPerSecond: 20480, source: measured}\n"
        "- {model: other, accelerator: h100, tensorParallel: 2, prefillTokensPerSecond: 1000}\n"
    )
    world = World(H100, profilePath=str(file))
    assert world.prefill() == 20480
    here = [{"model": "qwen3-32b", "accelerator": "h100", "tensorParallel": 2, "prefillTokensPerSecond": 9000}]
    assert World(H100, profilePath=str(file), profiles=here).prefill() == 9000


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- {model: m, prefilTokensPerSecond: 1}", "\\[0\\].prefilTokensPerSecond: unknown key; did you mean"),
        ("- {model: m}", "profile 'm' has no rates"),
        ("- {model: m, alphaMs: fast}", "alphaMs is 'fast'; write a number"),
        ("- {alphaMs: 1}\n- {alphaMs: 0}", "\\[1\\].alphaMs: alphaMs is 0; it must be above 0"),
        ("- {", "neither YAML nor JSON"),
        ("model: m", "holds no list; begin each entry with `- `"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path, content, sentence):
    file = tmp_path / "profiles.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"(?s)profilePath '{file}'.*{sentence}"):
        World(H100, profilePath=str(file))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"profilePath": "/no/such/file"}, "profilePath '/no/such/file' cannot be read: No such file"),
        ({"minTokens": 0}, "minTokens is 0; it must be at least 1"),
        ({"minOutputTokens": 1}, "minOutputTokens is 1; it must be at least 2"),
        ({"halfLife": "soon"}, "halfLife: 'soon' is not a duration"),
        ({"halfLife": "0"}, "halfLife is '0'; it must be above 0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        World(H100, **parameters)
