# SPDX-License-Identifier: Apache-2.0
"""Rates of endpoints: from profiles at first, then from their responses."""

import math
import random

import numpy as np
import pytest
from msgspec.structs import replace

from epp.framework import (
    Candidates,
    ConfigurationError,
    Endpoint,
    Headers,
    ManualClock,
    PrefixMatch,
    Request,
    RequestBody,
    Response,
    Usage,
)
from epp.framework.accelerators.tag import AcceleratorTag, Cost, Performance
from epp.framework.datalayer import Report
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.request import PREFIX_MATCH
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT_TOKENS, RUNNING
from epp.framework.testing import candidates
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer
from epp.routing.datastore import Datastore
from tests.support.plugins import built
from tests.support.results import legs_to

H100 = AcceleratorTag(model="h100", vendor="nvidia", count=2, performance=Performance(fp16=989), bandwidth_gbps=3350)
T4 = AcceleratorTag(model="t4", vendor="nvidia", count=1, performance=Performance(fp16=65), bandwidth_gbps=320)
MODEL = "Qwen/Qwen3-32B"


class World:
    """A pool, a clock, and endpoints with given response times."""

    def __init__(self, *tags, **parameters):
        self.clock = ManualClock()
        parameters = {"halfLife": "10000h"} | parameters  # so that a second takes nothing away
        self.plugin = built(EndpointRatesProducer, parameters, clock=self.clock)
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

    def send(self, slot=0, *, tokens=1000, in_flight=0, cached_blocks=0, streaming=True, extra_legs=None):
        request = Request("r", RequestBody(model=MODEL, prompt_tokens=tokens, streaming=streaming))
        if cached_blocks:
            blocks = np.full(len(self.pool), cached_blocks, dtype=np.int32)
            request.put(PREFIX_MATCH, PrefixMatch(blocks, tokens // 64, block_tokens=64))
        waiting = self.pool.snapshot.columns[IN_FLIGHT_TOKENS.name]
        waiting.flags.writeable = True  # for what the datastore does in a running picker
        waiting[slot] = in_flight
        waiting.flags.writeable = False
        self.plugin.produce(request, self.pool)
        self.plugin.pre_request(request, legs_to(self.pool, default=slot, **(extra_legs or {})))
        return request

    def answer(self, request, seconds, *, served=None, status=200, itl=None, tokens=0):
        response = Response(self.pool[0 if served is None else served], "", status, Headers(), Usage(0, tokens, 0))
        self.plugin.first_token(request, response, seconds)
        if itl is not None:
            self.plugin.ended(request, response, itl * (tokens - 1))

    def stream(self, events, itl, *, tokens=None):
        """Answer with a stream of this number of events; `usage` has the tokens, if given."""
        usage = None if tokens is None else Usage(0, tokens, 0)
        response = Response(self.pool[0], "", 200, Headers(), usage, events=events + 2)
        self.plugin.ended(self.send(), response, itl * events)
        self.clock.advance(1)

    def learn(self, rate, *, times=5, slot=0, tokens=1000):
        for _ in range(times):
            self.answer(self.send(slot, tokens=tokens), tokens / rate, served=slot)
        self.clock.advance(1)

    def source(self, slot=0, rate="prefill", model=MODEL):
        """Return the source of a rate."""
        rates = self.rates(model)
        samples = getattr(rates, f"{rate}_samples")[slot]
        return f"learned ({samples} samples)" if samples else rates.sources[rates.kinds[slot]][rate == "itl"]


PROFILED = "profile qwen3-32b/h100/vllm/2"


@pytest.mark.parametrize(
    ("tags", "prefill", "sources"),
    [
        ([H100, T4], [15928, 523.4], [PROFILED, "scaled from h100 by TFLOPS"]),
        # unknown hardware has the median of the others, and the default if nothing is known of any
        (
            [H100, AcceleratorTag(), AcceleratorTag(model="h100", count=4)],
            [15928, (15928 + 2 * 15928) / 2, 2 * 15928],
            [PROFILED, "median of the pool"],
        ),
        ([AcceleratorTag(), AcceleratorTag()], [15928, 15928], ["default"]),
    ],
)
def test_rates_start_from_profiles_and_say_which(tags, prefill, sources):
    world = World(*tags)
    assert world.rates().prefill_tokens_per_second.tolist() == pytest.approx(prefill, abs=0.1)
    assert [world.source(slot) for slot in range(len(sources))] == sources


def test_adapters_use_the_profiles_of_their_base(world):
    assert World(H100, baseModel="Qwen3-32B").source(model="my-adapter") == PROFILED
    assert world.source(model="my-adapter") == world.source(rate="itl") == "profile */h100 x2"


@pytest.fixture
def world():
    return World(H100)


@pytest.mark.parametrize(
    ("sent", "answered", "prefill", "itl"),
    [
        ({}, {}, 1000 / 0.2, 0.00504),  # of the profile: (10 + 5 / 64 * batch) / 2 ms
        # 3000 ahead in flight and 1000 - 10 * 64 = 360 of its own
        ({"in_flight": 3000, "cached_blocks": 10}, {}, 3360 / 0.2, 0.00504),
        ({"tokens": 10}, {"itl": 0.020, "tokens": 101}, 15928, 0.020),
        # few generated tokens, a short prompt, or a mostly cached one give no sample: 1000 - 768 = 232
        ({"tokens": 10}, {"itl": 0.020, "tokens": 15}, 15928, 0.00504),
        ({"tokens": 255}, {}, 15928, 0.00504),
        ({"tokens": 1000, "cached_blocks": 12}, {}, 15928, 0.00504),
        # nor does a response that is not streamed, of two endpoints or another one, that failed, or came in no time
        ({"streaming": False}, {}, 15928, 0.00504),
        ({"extra_legs": {"prefill": 1}}, {}, 15928, 0.00504),
        ({}, {"served": 1}, 15928, 0.00504),
        ({}, {"status": 500}, 15928, 0.00504),
        ({}, {"seconds": 0.0}, 15928, 0.00504),
    ],
)
def test_het_4_responses_teach_the_rates(sent, answered, prefill, itl):
    world = World(H100, T4)
    for _ in range(5):
        world.answer(world.send(**sent), **({"seconds": 0.2} | answered))
    world.clock.advance(1)
    rates = world.rates()
    assert rates.prefill_tokens_per_second[0] == pytest.approx(prefill)
    assert rates.itl_seconds(world.pool, np.ones(2))[0] == pytest.approx(itl, abs=1e-5)
    assert (world.source() == PROFILED) == (prefill == 15928)
    assert (world.source(rate="itl") == "learned (5 samples)") == (itl == 0.020)


def test_het_4_decode_speed_is_learned_from_streams_without_usage(world):
    for _ in range(24):
        world.stream(160, 0.05)
    assert world.source(rate="itl") == "learned (24 samples)"
    assert world.plugin.dump_state(world.pool.snapshot)["outputTokens"] == 160


def test_het_4_tokens_of_an_event_are_learned_from_streams_that_have_both(world):
    world.stream(50, 0.05, tokens=200)
    world.stream(100, 0.05)
    assert world.plugin.dump_state(world.pool.snapshot)["outputTokens"] == (200 + 400) / 2


@pytest.mark.parametrize(
    ("parameters", "times"), [({"minSamples": 5}, 4), ({"learn": False}, 5)], ids=["too few samples", "turned off"]
)
def test_het_4_nothing_is_learned_from_few_samples_or_if_it_is_turned_off(parameters, times):
    world = World(H100, **parameters)
    world.learn(5000, times=times)
    assert world.prefill() == 15928


def test_het_4_length_of_answers_is_learned(world):
    assert world.rates().output_tokens == 200
    for tokens in (100, 20, 60):
        world.answer(world.send(), 0.1, itl=0.01, tokens=tokens)
    world.clock.advance(1)
    assert world.rates().output_tokens == pytest.approx(60)


def test_het_4_endpoints_not_yet_seen_are_taken_to_be_like_those_seen():
    world = World(H100, H100, T4)
    world.learn(15928 / 4)
    # the profile is 4 times too high for this pool: for the other H100, and failing better for the T4
    assert world.rates().prefill_tokens_per_second.tolist() == pytest.approx([3982, 3982, 523.4 / 4], abs=0.1)
    assert world.source(1) == f"{PROFILED}, times the ratio learned from others"


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


def test_het_4_learning_follows_an_endpoint_that_becomes_slower(world):
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
    assert world.source() == PROFILED


FIRST, SECOND = ({"epp/pod-uid": name} for name in ("first", "second"))
BOOTED, AGAIN = ({"epp/boot-id": name} for name in ("first", "second"))


@pytest.mark.parametrize(
    ("before", "after", "prefill"),
    [
        ({}, {"count": 4}, 2 * 15928),  # other hardware is learned anew
        ({}, {"cost": Cost(per_hour=2.0), "reason": "moved"}, 5000),  # a price or state leaves what was learned
        # and so does a pod that only comes to be known; another pod, or a node that was booted, does not
        ({}, {"attributes": FIRST}, 5000),
        ({"attributes": FIRST}, {"attributes": FIRST, "reason": "moved"}, 5000),
        ({"attributes": FIRST}, {"attributes": SECOND}, 15928),
        ({"attributes": BOOTED}, {"attributes": BOOTED, "reason": "moved"}, 5000),
        ({"attributes": BOOTED}, {"attributes": AGAIN}, 15928),
    ],
)
def test_het_4_is_11_other_hardware_and_another_pod_or_boot_are_learned_anew(before, after, prefill):
    world = World(replace(H100, **before), T4)
    world.learn(5000)
    world.retag(replace(H100, **after), T4)
    assert world.prefill() == pytest.approx(prefill)


def test_het_4_engine_that_changes_is_learned_anew(world):
    world.learn(5000)
    world.labels = [{"llm-d.ai/engine-type": "sglang"}]
    world.retag(H100)
    assert world.source() == "profile qwen3-32b/h100/sglang/2"
    assert world.prefill() == 15360


def test_het_4_endpoint_that_leaves_takes_along_what_was_learned_and_what_is_on_its_way(world):
    world.learn(5000)
    on_its_way = [world.send() for _ in range(5)]
    world.plugin.slots_removed([0])
    for request in on_its_way:
        world.answer(request, 0.01)
    world.clock.advance(1)
    assert world.prefill() == 15928


def test_learned_rates_are_published_ten_times_a_second_at_most(world):
    world.learn(5000)
    learned = world.rates()
    world.answer(world.send(), 1.0)
    assert world.rates() is learned
    world.clock.advance(0.1)
    assert world.rates() is not learned


def test_rates_that_are_not_learned_stay_published():
    world = World(H100, learn=False)
    first = world.rates()
    world.clock.advance(1000)
    assert world.rates() is first


def test_what_endpoints_report_does_not_make_rates_be_computed_anew(world):
    store = Datastore(ManualClock())
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
    assert published[0].sources[1][0] == PROFILED


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
        ("- {", "line 1: neither YAML nor JSON"),
        ("- {model: m,\n  model: n}", "line 2: key 'model' is repeated"),
        ("model: m", "is not a list; begin each entry with `- `"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path, content, sentence):
    file = tmp_path / "profiles.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"(?s)profilePath '{file}'.*{sentence}"):
        World(H100, profilePath=str(file))
