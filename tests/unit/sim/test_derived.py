# SPDX-License-Identifier: Apache-2.0
"""Presets of other accelerators follow from their data sheets by the formula of the typed ones."""

import pytest

from epp.framework import ConfigurationError
from epp.lab.sim.profile import PRESETS, derive_preset, derived_presets, find_server_profile

FIGURES = {
    "h100": (989, 3350, 80, 64),
    "a100": (312, 1555, 40, 32),
    "a100-3g.20gb": (134, 778, 20, 32),
    "t4": (65, 320, 16, 16),
}


@pytest.mark.parametrize("name", PRESETS)
def test_formula_gives_the_typed_presets(name: str):
    tflops, bandwidth, memory, host = FIGURES[name]
    derived = derive_preset(name, fp16_tflops=tflops, bandwidth_gbps=bandwidth, memory_gb=memory, host_gbps=host)
    typed = PRESETS[name]
    for field in (
        "prefill_tokens_per_second",
        "seconds_per_output_token",
        "batch_slope",
        "num_gpu_blocks",
        "host_gbps",
    ):
        assert getattr(derived, field) == pytest.approx(getattr(typed, field), rel=0.055), field
    assert (derived.name, derived.max_num_seqs) == (name, typed.max_num_seqs)


def test_accelerator_of_the_catalogue_has_a_preset():
    # 0.4 * 362e12 / 16e9 = 9,050 tokens a second; 16e9 / (0.7 * 864e9) = 0.0265 s a step
    l40s = find_server_profile("l40s", "--preset")
    assert (l40s.prefill_tokens_per_second, l40s.seconds_per_output_token) == (9050.0, 0.0265)
    larger = find_server_profile("a100-sxm-80gb", "--preset")
    assert larger.num_gpu_blocks > PRESETS["a100"].num_gpu_blocks
    assert not PRESETS.keys() & derived_presets().keys()


def test_device_that_holds_no_model_has_none():
    assert "flex-140" not in derived_presets()
    assert derive_preset("small", fp16_tflops=10, bandwidth_gbps=100, memory_gb=8) is None


def test_unknown_preset_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigurationError, match="no preset and no file 'l4os'; did you mean 'l40s'"):
        find_server_profile("l4os", "--preset")
    with pytest.raises(ConfigurationError, match="the presets are h100, a100"):
        find_server_profile("abacus", "--preset")
