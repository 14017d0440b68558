# SPDX-License-Identifier: Apache-2.0
"""A machine in virtual time is measured, and its parameters are found again."""

import contextlib

import msgspec
import pytest

from epp.lab.sim.fit import Answer, NotEnoughError, fit, fit_error, predict, spread
from epp.lab.sim.measure import Calibration, Facts, ServerError
from epp.lab.sim.profile import PRESETS, SimProfile

PLAIN = SimProfile(max_num_batched_tokens=2048, max_num_seqs=256)


class VirtualServer:
    """Answers like a machine, and moves a clock by the time that takes; optionally dies, or has other traffic."""

    def __init__(self, profile, *, batches=10_000, others=0):
        self.profile = profile
        self.batches = batches
        self.others = others
        self.now = 0.0
        self.seen = set()

    async def facts(self):
        return Facts(max_model_len=8192)

    async def requests(self):
        return self.others

    async def send(self, probes):
        self.batches -= 1
        if self.batches < 0:
            raise ServerError("the server is gone")
        cached = [len(probe.prompt) - 1 if probe.prompt in self.seen else 0 for probe in probes]
        asked = [
            Answer(len(probe.prompt), count, (0.0,) * probe.output_tokens)
            for probe, count in zip(probes, cached, strict=True)
        ]
        self.seen.update(probe.prompt for probe in probes)
        answers = predict(self.profile, asked)
        self.now += max(answer.token_seconds[-1] for answer in answers)
        return answers


async def measured(server, budget=600.0):
    found = Calibration(server, budget=budget, clock=lambda: server.now, seed=1)
    with contextlib.suppress(ServerError):
        await found.run()
    return found


@pytest.mark.parametrize(
    "profile",
    [
        *PRESETS.values(),
        SimProfile(prefill_step_seconds=0.05, prefill_tokens_per_second=900.0, batch_slope=0.5),
        SimProfile(request_overhead_seconds=0.04, prefill_tokens_per_second=900.0, attention_tokens=1500.0),
        SimProfile(request_overhead_seconds=0.04, prefill_step_seconds=0.02, time_scale=10.0),
    ],
)
async def test_speeds_are_found_again(profile):
    found = await measured(VirtualServer(profile))
    result = fit(PLAIN, found.prefills, found.decodes)
    seconds = ("seconds_per_output_token", "prefill_step_seconds", "request_overhead_seconds")
    scales = dict.fromkeys(seconds, profile.time_scale) | {"prefill_tokens_per_second": 1 / profile.time_scale}
    for field, scale in {**scales, "batch_slope": 1, "attention_tokens": 1}.items():
        assert getattr(result, field) == pytest.approx(scale * getattr(profile, field), rel=0.1, abs=1e-4), field
    errors = fit_error(result, found.held_out)
    assert errors.requests > 8
    assert max(errors.ttft_p90, errors.time_per_token_p90) < 0.1


async def test_largest_batch_is_found_again():
    found = await measured(VirtualServer(msgspec.structs.replace(PLAIN, max_num_seqs=6)))
    assert fit(PLAIN, found.prefills, found.decodes).max_num_seqs == 6


async def test_repeated_prompt_is_faster():
    found = await measured(VirtualServer(PRESETS["t4"]))
    assert all(again.token_seconds[0] < fresh.token_seconds[0] for fresh, again in found.hits)


async def test_budget_bounds_the_time():
    server = VirtualServer(PRESETS["t4"])
    found = await measured(server, budget=20.0)
    assert server.now < 25.0
    assert fit_error(fit(PLAIN, found.prefills, found.decodes), found.held_out).requests


async def test_dying_server_leaves_what_was_measured():
    found = await measured(VirtualServer(PRESETS["a100"], batches=12))
    assert fit(PLAIN, found.prefills, found.decodes).prefill_tokens_per_second == pytest.approx(7_800, rel=0.1)
    assert fit_error(PLAIN, found.held_out) is None


async def test_too_little_is_refused_with_a_remedy():
    found = await measured(VirtualServer(PRESETS["a100"], batches=2))
    with pytest.raises(NotEnoughError, match=r"1 lengths of prompts and 0 sizes of batches .* longer --budget"):
        fit(PLAIN, found.prefills, found.decodes)


async def test_traffic_of_others_is_noticed():
    found = await measured(VirtualServer(PRESETS["h100"], others=3))
    assert found.busy > 0


def test_differences_of_equal_requests_are_told_of_lengths_that_were_measured_often():
    often = [[Answer(10, 0, (seconds,))] for seconds in (1.0, 1.0, 1.2)]
    assert spread([*often, [Answer(20, 0, (9.0,))]]) == pytest.approx((0.0, 0.16))
    assert spread(often[:2]) is None
