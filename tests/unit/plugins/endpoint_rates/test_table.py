# SPDX-License-Identifier: Apache-2.0
"""Choice and scaling of the profile for a model on some hardware."""

from math import isnan

import pytest

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Partition, Performance, Sharing
from epp.plugins.endpoint_rates.profiles import RateProfile, RateTable, hardware_of, model_key

H100 = AcceleratorTag(model="h100", vendor="nvidia", count=2, performance=Performance(fp16=989), bandwidth_gbps=3350)
T4 = AcceleratorTag(model="t4", vendor="nvidia", count=1, performance=Performance(fp16=65), bandwidth_gbps=320)


def found(tag, *profiles, model="qwen3-32b", engine="vllm"):
    return RateTable(profiles).look_up(model_key(model), hardware_of(tag, engine))


def profile(rate, model="", accelerator="", engine="", devices=0):
    return RateProfile(model, accelerator, engine, devices, prefill_tokens_per_second=rate)


def test_model_accelerator_engine_and_devices_find_what_was_measured():
    rates = found(H100, model="Qwen/Qwen3-32B")
    assert (rates.prefill_tokens_per_second, rates.prefill_source) == (15928, "profile qwen3-32b/h100/vllm/2")
    assert found(H100, engine="sglang").prefill_source == "profile qwen3-32b/h100/sglang/2"


def test_keys_are_dropped_from_the_right():
    keys = [("m", "h100", "vllm", 2), ("m", "h100", "vllm"), ("m", "h100"), ("m",), ("", "h100")]
    profiles = [profile(rate, *key) for rate, key in enumerate(keys, 1)]
    sources = [found(H100, *reversed(profiles[step:]), model="m").prefill_source for step in range(len(keys))]
    assert sources == [
        "profile m/h100/vllm/2",
        "profile m/h100/vllm x2",  # the figures of one device, times 2
        "profile m/h100 x2",
        "profile m x2",
        "profile */h100 x2",
    ]


def test_class_of_the_accelerator_goes_before_its_model():
    tag = AcceleratorTag(model="h100", classes=("pcie-h100",), count=1)
    assert found(tag, profile(1, accelerator="h100"), profile(2, accelerator="PCIe-H100")).prefill_source == (
        "profile */PCIe-H100"
    )


def test_profile_of_another_number_of_devices_is_scaled_by_them():
    four = AcceleratorTag(model="h100", count=4)
    rates = found(four, profile(10_000, "m", "h100", "vllm", 2), model="m")
    assert (rates.prefill_tokens_per_second, rates.prefill_source) == (20_000, "profile m/h100/vllm/2 x2")


def test_of_several_the_nearest_number_of_devices_counts():
    profiles = [profile(1000, "m", "h100", "vllm", 1), profile(7000, "m", "h100", "vllm", 8)]
    assert found(AcceleratorTag(model="h100", count=4), *profiles, model="m").prefill_tokens_per_second == 3500


def test_unknown_number_of_devices_is_taken_to_be_the_profiles():
    assert found(AcceleratorTag(model="h100")).prefill_tokens_per_second == 15928


def test_slice_has_its_share_of_the_compute():
    # 3g.20gb: 3/7 of the compute, 4/8 of the bandwidth
    part = Partition(kind=Sharing.MIG, compute_fraction=3 / 7, memory_fraction=4 / 8)
    tag = AcceleratorTag(model="h100", count=1, partition=part)
    rates = found(tag, profile(7000, "m", "h100"), RateProfile(model="m", accelerator="h100", alpha_ms=10), model="m")
    assert rates.prefill_tokens_per_second == pytest.approx(3000)
    assert rates.itl_base_seconds == pytest.approx(0.020)


def test_accelerator_without_a_profile_is_scaled_by_tflops_and_bandwidth():
    rates = found(T4)
    # 15928 for two devices of 989 TFLOPS: 7964 * 65 / 989 = 523.4
    assert rates.prefill_tokens_per_second == pytest.approx(523.4, abs=0.1)
    assert rates.prefill_source == "scaled from h100 by TFLOPS"
    # the nearest bandwidth is an L40S's: 25 ms * 864 / 320 = 67.5 ms
    assert rates.itl_base_seconds == pytest.approx(0.0675)
    assert rates.itl_source == "scaled from l40s by bandwidth"


def test_profile_of_the_same_vendor_is_scaled_though_another_is_nearer():
    # a TPU v6e of 918 TFLOPS is nearer to 312 than an H100 of 989
    a100 = AcceleratorTag(model="a100", vendor="nvidia", count=1, performance=Performance(fp16=312))
    assert found(a100).prefill_source == "scaled from h100 by TFLOPS"


def test_profile_may_say_its_own_tflops():
    own = RateProfile(model="m", accelerator="mine", prefill_tokens_per_second=1000, fp16_tflops=130)
    assert found(T4, own, model="m").prefill_tokens_per_second == pytest.approx(500)


def test_given_profiles_precede_built_in_ones():
    assert found(H100, profile(5000, accelerator="h100")).prefill_source == "profile */h100 x2"
    assert found(H100, profile(5000, accelerator="h100")).prefill_tokens_per_second == 10_000


def test_nothing_known_is_the_default():
    rates = found(AcceleratorTag(), model="m")
    assert (rates.prefill_tokens_per_second, rates.prefill_source, rates.prefill_known) == (15928, "default", False)


def test_cpu_is_slow_at_both():
    rates = found(AcceleratorTag(kind=AcceleratorKind.CPU), model="m")
    assert rates.prefill_source == "profile */cpu"
    # as the prefill rate compares with an H100's: 10 ms * 7964 / 197
    assert rates.itl_base_seconds == pytest.approx(0.010 * 7964 / 197)


def test_gamma_and_delta_give_the_prefill_rate_too():
    rates = found(H100, RateProfile(model="m", accelerator="h100", gamma_ms=20, delta_ms=0.1), model="m")
    # 1000 / 0.1 = 10000 tokens a second for each of two devices
    assert rates.prefill_tokens_per_second == pytest.approx(20_000)
    assert (rates.ttft_base_seconds, rates.ttft_seconds_per_token) == pytest.approx((0.020, 0.00005))
    assert isnan(found(H100).ttft_base_seconds)
