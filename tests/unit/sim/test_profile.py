# SPDX-License-Identifier: Apache-2.0
"""Profiles that describe no server are refused with the name of the field."""

import pytest

from epp.lab.sim.profile import PRESETS, SimProfile


def test_presets_are_ordered_by_speed_and_memory():
    h100, a100, t4 = (PRESETS[name] for name in ("h100", "a100", "t4"))
    assert h100.prefill_tokens_per_second > a100.prefill_tokens_per_second > t4.prefill_tokens_per_second
    assert h100.seconds_per_output_token < a100.seconds_per_output_token < t4.seconds_per_output_token
    assert h100.num_gpu_blocks > a100.num_gpu_blocks > t4.num_gpu_blocks
    assert [profile.name for profile in (h100, a100, t4)] == ["h100", "a100", "t4"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_scale": 0.0}, "time_scale must be a positive number"),
        ({"prefill_tokens_per_second": float("inf")}, "prefill_tokens_per_second must be a positive number"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"batch_slope": -0.1}, "batch_slope must be 0 or more"),
        ({"attention_tokens": float("nan")}, "attention_tokens must be 0 or more"),
        ({"request_overhead_seconds": -1}, "request_overhead_seconds must be 0 or more"),
        ({"num_host_blocks": -1}, "num_host_blocks must be 0 or more"),
        ({"host_gbps": 0}, "host_gbps must be a positive number"),
        ({"num_disk_blocks": -1}, "num_disk_blocks must be 0 or more"),
        ({"disk_gbps": 0}, "disk_gbps must be a positive number"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens 8 is less than max_num_seqs 256"),
        ({"max_model_len": 33, "num_gpu_blocks": 2}, "max_model_len 33 must be 2 to 32"),
        ({"lora_adapters": ("a", "a")}, "must all have different names"),
        ({"model": ""}, "must not be empty"),
    ],
)
def test_impossible_server_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SimProfile(**changes)
