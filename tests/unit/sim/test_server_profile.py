# SPDX-License-Identifier: Apache-2.0
"""Server profiles as files: what is written is read again, and mistakes are named with file, field and remedy."""

from datetime import UTC, datetime

import pytest

from epp.framework import ConfigurationError
from epp.lab.sim.profile import FitError, ProfileSource, SimProfile, dump_server_profile, load_server_profile

SOURCE = ProfileSource(
    kind="measured",
    server="http://server:8000",
    at=datetime(2026, 1, 2, tzinfo=UTC),
    requests=40,
    errors=FitError(requests=8, ttft_median=0.01, ttft_p90=0.05, time_per_token_median=0.02, time_per_token_p90=0.04),
)


def test_written_profile_is_read_again(tmp_path):
    profile = SimProfile(name="mine", batch_slope=0.25, num_gpu_blocks=700)
    (tmp_path / "mine.yaml").write_text(dump_server_profile(profile, SOURCE))
    assert load_server_profile(tmp_path / "mine.yaml") == profile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: neither YAML nor JSON"),
        ("batch_slope: 1\nbatch_slope: 2", "line 2: key 'batch_slope' is repeated"),
        ("- 1", "write `field: value` lines"),
        ("block_sise: 3", "block_sise: did you mean 'block_size'"),
        ("batch_slope: x", "batch_slope is 'x': write a number"),
        ("batch_slope: -1", "batch_slope must be 0 or more"),
        ("num_gpu_blocks: 10", "lower it or raise num_gpu_blocks"),
        ("source: {kind: guessed}", "source.kind is 'guessed': use 'measured', 'published', 'derived'"),
        ("x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_mistake_is_named_with_the_file(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_server_profile(file)
    assert str(file) in str(caught.value)


def test_missing_file_and_directory_are_named(tmp_path):
    for path, message in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "it is a directory")):
        with pytest.raises(ConfigurationError, match=message):
            load_server_profile(path)
