# SPDX-License-Identifier: Apache-2.0
"""Profiles of simulated model servers: name, model, speed and memory."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec


class SimProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated server; the defaults are those of the `h100` preset.

    Construction raises `ValueError`, with field and remedy, for values that no server can have.

    Attributes:
        name: sent in the `x-sim-server` header of every answer.
        model: the base model, as clients write it in `model`.
        lora_adapters: names of adapters of `model`, each served as a model of its own.
        prefill_tokens_per_second: uncached prompt tokens computed per second.
        prefill_step_seconds: duration of a step that computes prompt tokens, besides that of the tokens.
        attention_tokens: prompt tokens after which attention doubles the duration of the next one: a token after `n`
            others takes `(1 + n / attention_tokens) / prefill_tokens_per_second`. 0 leaves attention out.
        request_overhead_seconds: time between the arrival of a request and its place in the queue, for HTTP and
            tokenisation; others are computed meanwhile.
        seconds_per_output_token: duration of a decode step that carries one request.
        batch_slope: relative growth of that duration with each further request in the batch:
            a step with `n` requests takes `seconds_per_output_token * (1 + batch_slope * (n - 1))`.
        max_num_seqs: most requests that run at the same time; the rest wait in order of arrival.
        max_num_batched_tokens: most tokens of one step, decoded ones included; longer prompts are computed in chunks.
        block_size: tokens of one KV cache block.
        num_gpu_blocks: blocks of the KV cache.
        num_host_blocks: blocks of KV cache in the memory of the host, which hold what leaves the KV cache; 0 for none.
        host_gbps: bandwidth of the link to the host, in one direction, in GB/s; nothing is computed during a copy.
        kv_bytes_per_token: size of one token in the KV cache, on all devices together.
        max_lora: most adapters that run at the same time; as many stay loaded, those used last.
        lora_load_seconds: time to load an adapter; the machine computes nothing meanwhile.
        max_model_len: most tokens, prompt and output together, of one request.
        default_output_tokens: length of an answer that is not cut (`finish_reason: stop`).
        seed: equal seeds give equal answers to equal prompts, on any server.
        time_scale: factor on every duration: 1.0 is real, 0.1 is ten times faster.
    """

    name: str = "sim"
    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    lora_adapters: tuple[str, ...] = ()
    prefill_tokens_per_second: float = 25_000.0
    prefill_step_seconds: float = 0.0
    attention_tokens: float = 0.0
    request_overhead_seconds: float = 0.0
    seconds_per_output_token: float = 0.0068
    batch_slope: float = 0.008
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_gpu_blocks: int = 26_000
    num_host_blocks: int = 0
    host_gbps: float = 64.0
    kv_bytes_per_token: int = 131_072
    max_lora: int = 1
    lora_load_seconds: float = 0.0
    max_model_len: int = 8192
    default_output_tokens: int = 32
    seed: int = 0
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the values; raises ValueError."""
        cache_tokens = self.block_size * self.num_gpu_blocks
        infinity = float("inf")
        for field in ("prefill_tokens_per_second", "seconds_per_output_token", "host_gbps", "time_scale"):
            self._check(0 < getattr(self, field) < infinity, f"{field} must be a positive number")
        for field in (
            *("max_num_seqs", "max_num_batched_tokens", "block_size"),
            *("num_gpu_blocks", "kv_bytes_per_token", "max_lora", "default_output_tokens"),
        ):
            self._check(getattr(self, field) >= 1, f"{field} must be at least 1")
        for field in (
            *("batch_slope", "lora_load_seconds", "prefill_step_seconds"),
            *("attention_tokens", "request_overhead_seconds", "num_host_blocks"),
        ):
            self._check(0 <= getattr(self, field) < infinity, f"{field} must be 0 or more")
        self._check(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens {self.max_num_batched_tokens} is less than max_num_seqs {self.max_num_seqs}, the "
            "size of a full batch: raise the former or lower the latter",
        )
        served = self.served_models
        self._check(len(set(served)) == len(served), "model and lora_adapters must all have different names")
        self._check(all(served), "model and lora_adapters must not be empty names")
        self._check(
            1 < self.max_model_len <= cache_tokens,
            f"max_model_len {self.max_model_len} must be 2 to {cache_tokens}, the size of the KV cache in tokens "
            "(block_size * num_gpu_blocks): lower it or raise num_gpu_blocks",
        )

    def _check(self, holds: object, problem: str) -> None:
        if not holds:
            raise ValueError(f"sim profile {self.name!r}: {problem}")

    @property
    def overhead_seconds(self) -> float:
        """`request_overhead_seconds` at the scale of time."""
        return self.time_scale * self.request_overhead_seconds

    @property
    def served_models(self) -> tuple[str, ...]:
        """The base model first, then the adapters."""
        return (self.model, *self.lora_adapters)


# An 8-billion-parameter model on four GPUs, from first principles rather than from a benchmark:
#   prefill tokens/s  = 0.4 * dense fp16 FLOPS / (2 * 8e9)             989, 312, 134 (3/7 of it) and 65 TFLOPS
#   seconds per token = weight bytes / (0.7 * bandwidth)               3350, 1555, 778 (half of it) and 320 GB/s
#   batch_slope       = reading the KV of 1,024 tokens (128 KiB each) / reading the weights
#   KV blocks         = (0.92 * memory - weights - workspace) / (16 * 128 KiB)     80, 40, 20 and 16 GB
#   link to the host  = 16 lanes of PCIe 5, 4 and 3
# Weights are 16 GB, on the slice and on the T4, which could not hold them with a cache besides, 8 GB (8 bit); the
# workspace is 3 GB, or 2 GB. `derived` computes those of other accelerators.
PRESETS: Final[Mapping[str, SimProfile]] = MappingProxyType(
    {
        "h100": SimProfile(name="h100"),
        "a100": SimProfile(
            name="a100",
            prefill_tokens_per_second=7_800.0,
            seconds_per_output_token=0.0147,
            num_gpu_blocks=8_500,
            host_gbps=32.0,
        ),
        "a100-3g.20gb": SimProfile(
            name="a100-3g.20gb",
            prefill_tokens_per_second=3_350.0,
            seconds_per_output_token=0.0147,
            batch_slope=0.017,
            max_num_seqs=128,
            num_gpu_blocks=4_000,
            host_gbps=32.0,
        ),
        "t4": SimProfile(
            name="t4",
            prefill_tokens_per_second=1_600.0,
            seconds_per_output_token=0.036,
            batch_slope=0.017,
            max_num_seqs=64,
            num_gpu_blocks=2_200,
            host_gbps=16.0,
        ),
    }
)
