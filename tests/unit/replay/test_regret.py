# SPDX-License-Identifier: Apache-2.0
"""The oracle's forecast, and the regret of decisions."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.replay.fleet import ReplayOptions
from epp.lab.replay.jobs import replay
from epp.lab.replay.summary import summarise
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import PRESETS
from epp.lab.sim.work import SimRequest
from tests.unit.replay.conftest import ListTrace, config, fleet, requests

PROFILE = msgspec.structs.replace(PRESETS["a100"], max_num_seqs=8, max_num_batched_tokens=512)


def request(number: int, prompt: int, output: int) -> SimRequest:
    return SimRequest(request_id=number, prompt_tokens=prompt, output_tokens=output)


def actual(machine: Machine, last: SimRequest) -> float:
    start = machine.now
    machine.submit(last)
    return next(
        one.at_seconds - start
        for one in machine.advance(1e6)
        if one.request_id == last.request_id and one.finish_reason is not None
    )


def test_forecast_of_a_lone_request_is_exact():
    machine = Machine(PROFILE, every_token=False)
    last = request(0, 500, 101)
    assert machine.seconds_to_end(last) == pytest.approx(500 / 7800 + 100 * 0.0147)
    assert actual(machine, last) == pytest.approx(500 / 7800 + 100 * 0.0147)


def test_forecast_has_the_copy_of_blocks_in_host_memory():
    small = msgspec.structs.replace(PROFILE, num_gpu_blocks=512, num_host_blocks=512, kv_bytes_per_token=10_000_000)
    machine = Machine(small, every_token=False)
    for number in range(2):
        hashes = tuple(range(1000 * number, 1000 * number + 511))
        machine.submit(SimRequest(request_id=number, prompt_tokens=8185, output_tokens=2, block_hashes=hashes))
        machine.advance(10.0 * (number + 1))
    last = SimRequest(request_id=2, prompt_tokens=1601, output_tokens=2, block_hashes=tuple(range(100)))
    assert machine.seconds_to_end(last) == pytest.approx(1600 * 1e7 / 32e9 + 1 / 7800 + 0.0147)
    assert actual(machine, last) == pytest.approx(1600 * 1e7 / 32e9 + 1 / 7800 + 0.0147)


@given(
    others=st.lists(st.tuples(st.integers(50, 2000), st.integers(20, 300)), max_size=20),
    seconds=st.floats(0, 5),
    last=st.tuples(st.integers(50, 2000), st.integers(20, 300)),
)
def test_forecast_is_near_the_end_that_comes(others, seconds, last):
    machine = Machine(PROFILE, every_token=False)
    for number, (prompt, output) in enumerate(others):
        machine.submit(request(number, prompt, output))
        machine.advance(machine.now + 0.05)
    machine.advance(machine.now + seconds)
    end = request(100, *last)
    forecast = machine.seconds_to_end(end)
    assert forecast == pytest.approx(actual(machine, end), rel=0.35, abs=0.3)


def test_configuration_that_ignores_load_and_hardware_is_regretted_more():
    trace = ListTrace(requests(6.0, 30.0))
    good, bad = (
        replay(config(name), fleet("h100", "t4"), trace, ReplayOptions(regret_every=1))
        for name in ("adaptive", "random")
    )
    assert np.all(good.columns.regret >= 0)
    assert np.count_nonzero(good.columns.regret) < np.count_nonzero(bad.columns.regret)
    assert summarise(good).mean_regret < 0.2 * summarise(bad).mean_regret
