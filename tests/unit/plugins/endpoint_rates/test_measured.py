# SPDX-License-Identifier: Apache-2.0
"""Rates that start from files of `epp calibrate`."""

import pytest

from epp.framework import ConfigurationError
from epp.lab.sim.profile import ProfileSource, SimProfile, dump_server_profile
from tests.unit.plugins.endpoint_rates.test_producer import H100, MODEL, T4, World


def test_server_profile_comes_before_other_profiles(tmp_path):
    file = tmp_path / "mine.yaml"
    measured = SimProfile(model=MODEL, prefill_tokens_per_second=700.0, seconds_per_output_token=0.02, batch_slope=0.25)
    file.write_text(dump_server_profile(measured, ProfileSource(kind="measured")))
    other = [{"model": MODEL, "accelerator": "t4", "prefillTokensPerSecond": 9000}]
    world = World(T4, H100, serverProfiles=[{"path": str(file), "accelerator": "t4"}], profiles=other)
    rates = world.rates()
    assert rates.prefill_tokens_per_second[0] == 700
    assert rates.itl_base_seconds[0] + rates.itl_seconds_per_request[0] == pytest.approx(0.02)
    assert rates.itl_base_seconds[0] + 5 * rates.itl_seconds_per_request[0] == pytest.approx(0.02 * 2)
    assert rates.prefill_tokens_per_second[1] != 700


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- 1", "is not a mapping: name a file of `epp calibrate`"),
        ("a: [", "line 1: neither YAML nor JSON"),
        ("model: m\nmodel: n", "line 2: key 'model' is repeated: remove one of them"),
        (
            "model: m\nprefill_tokens_per_second: fast\nseconds_per_output_token: 1",
            "prefill_tokens_per_second is 'fast'",
        ),
        ("model: m\nprefill_tokens_per_second: 1\nseconds_per_output_token: 0", "seconds_per_output_token is 0"),
        ("x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_bad_server_profile_is_refused_by_name(tmp_path, content, sentence):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"(?s)serverProfiles: '{file}'.*{sentence}"):
        World(T4, serverProfiles=[{"path": str(file)}])


def test_missing_server_profile_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="serverProfiles: '/no/such/file': cannot be read: No such file"):
        World(T4, serverProfiles=[{"path": "/no/such/file"}])
