# SPDX-License-Identifier: Apache-2.0
"""Built-in profiles: published figures of a few models and accelerators.

The prefill rates with a model are measurements published with llm-d's guides (calibration matrix, 2026). Profiles
without a model are for dense models of about 32 billion parameters: `*/h100` is half the rate of two H100, the CPU's
a tenth of that measured with a model of 3 billion. The ITLs are the ranges that llm-d-inference-sim gives for models of
8 billion, the lower end for an empty batch and the upper end for one of 64: estimates until learned.
"""

from typing import NamedTuple

from epp.plugins.endpoint_rates.profile import RateProfile


class DeviceFigures(NamedTuple):
    """Figures of one whole device, as published by its vendor."""

    vendor: str
    fp16_tflops: float
    """Dense."""
    bandwidth_gbps: float


DEVICES: tuple[tuple[str, DeviceFigures], ...] = (
    ("h100", DeviceFigures("nvidia", 989, 3350)),
    ("h200", DeviceFigures("nvidia", 989, 4800)),
    ("b200", DeviceFigures("nvidia", 2250, 8000)),
    ("a100", DeviceFigures("nvidia", 312, 2039)),
    ("l40s", DeviceFigures("nvidia", 362, 864)),
    ("mi300x", DeviceFigures("amd", 1307, 5300)),
    ("v6e", DeviceFigures("google", 918, 1640)),
    ("v7x", DeviceFigures("google", 2307, 7380)),
)
"""Devices of the built-in profiles, for comparison with others."""

DEFAULT_PREFILL_TOKENS_PER_SECOND = 15928.0
"""Of endpoints without a profile in a pool without profiles."""
H100_PREFILL_TOKENS_PER_SECOND = 7964.0
"""Of one H100; reference for accelerators with a prefill rate and no ITL."""
DEFAULT_ITL_BASE_SECONDS = 0.010
DEFAULT_ITL_SECONDS_PER_REQUEST = 0.005 / 64


def _prefill(model: str, accelerator: str, engine: str, devices: int, rate: float, *, chunk: int = 0) -> RateProfile:
    return RateProfile(
        model=model,
        accelerator=accelerator,
        engine=engine,
        tensor_parallel=devices,
        chunk=chunk,
        prefill_tokens_per_second=rate,
    )


def _itl(accelerator: str, alone_ms: float, among_64_ms: float) -> RateProfile:
    return RateProfile(accelerator=accelerator, alpha_ms=alone_ms, beta_ms=(among_64_ms - alone_ms) / 64)


SEEDS: tuple[RateProfile, ...] = (
    _prefill("gpt-oss-120b", "h100", "vllm", 1, 39065, chunk=8192),
    _prefill("qwen3-32b", "h100", "vllm", 2, 15928, chunk=8192),
    _prefill("qwen3-32b", "h100", "sglang", 2, 15360, chunk=8192),
    _prefill("qwen3-32b", "v7x", "vllm", 8, 27336, chunk=8192),
    _prefill("qwen3-32b", "v6e", "vllm", 8, 26290, chunk=8192),
    _prefill("glm-5.2-nvfp4", "b200", "sglang", 8, 24027, chunk=32768),
    _prefill("qwen3-coder-480b-fp8", "v7x", "vllm", 8, 16444),
    _prefill("qwen3-vl-32b", "h200", "vllm", 2, 15751, chunk=8192),
    _prefill("llama-3.2-3b", "cpu", "vllm", 1, 1970, chunk=2048),
    RateProfile(accelerator="h100", prefill_tokens_per_second=H100_PREFILL_TOKENS_PER_SECOND),
    RateProfile(accelerator="cpu", prefill_tokens_per_second=197),
    _itl("h100", 10, 15),
    _itl("a100", 15, 25),
    _itl("l40s", 25, 35),
    _itl("mi300x", 12, 18),
)
