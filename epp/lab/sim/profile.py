# SPDX-License-Identifier: Apache-2.0
"""Server profiles: speeds and limits, presets, profiles derived from hardware, and profile files."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from epp.framework import ConfigurationError
from epp.framework.input_errors import ParameterError, read_struct
from epp.framework.plain_yaml import read_mapping
from epp.framework.quantities import GIB
from epp.framework.suggestions import hint_at
from epp.hardware.catalogue import PRODUCTS

_PARAMETERS = 8e9
_COMPUTE_SHARE, _BANDWIDTH_SHARE, _MEMORY_SHARE = 0.4, 0.7, 0.92
"""Shares of data-sheet figures that an engine reaches or uses."""
_KV_BYTES = 128 * 1024
"""KV-cache bytes of one token."""
_CONTEXT_TOKENS = 1024
"""Context of each request in a batch."""
_WEIGHTS_AND_WORKSPACE = ((16e9, 3e9), (8e9, 2e9))
"""Bytes with 16-bit weights, and with 8-bit weights for devices that cannot hold the former and a cache."""
_OTHER_HOST_GBPS = 32.0
"""Bandwidth of an unknown link to the host: 16 lanes of PCIe 4."""
_BLOCKS_PER_REQUEST = 30
_BATCH_SIZES = (256, 128, 64, 32, 16)


class SimProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated server; the defaults are those of the `h100` preset.

    Construction raises `ValueError`, with field and remedy, for impossible values.

    Attributes:
        name: sent in the `x-sim-server` header of every answer.
        model: the base model, as clients write it in `model`.
        lora_adapters: names of adapters of `model`, each served as a model of its own.
        prefill_tokens_per_second: uncached prompt tokens computed per second.
        prefill_step_seconds: fixed duration of a step that computes prompt tokens, added to that of the tokens.
        attention_tokens: prompt tokens after which attention doubles the duration of the next one: a token after `n`
            others takes `(1 + n / attention_tokens) / prefill_tokens_per_second`. 0 leaves attention out.
        request_overhead_seconds: time between the arrival of a request and its place in the queue, for HTTP and
            tokenisation; others are computed meanwhile.
        seconds_per_output_token: duration of a decode step that carries one request.
        batch_slope: relative growth of that duration with each further request in the batch:
            a step with `n` requests takes `seconds_per_output_token * (1 + batch_slope * (n - 1))`.
        max_num_seqs: maximum number of running requests; the rest wait in order of arrival.
        max_num_batched_tokens: maximum tokens of one step, including decoded ones; longer prompts are split.
        block_size: tokens of one KV cache block.
        num_gpu_blocks: blocks of the KV cache.
        num_host_blocks: blocks in the memory of the host, for content evicted from the KV cache; 0 for none.
        host_gbps: bandwidth of the link to the host, in one direction, in GB/s; nothing is computed during a copy.
        num_disk_blocks: blocks on a disk, for content evicted from the memory of the host; 0 for none.
        disk_gbps: bandwidth of reads from the disk in GB/s, by default that of an NVMe drive on PCIe 4; nothing is
            computed meanwhile.
        kv_bytes_per_token: size of one token in the KV cache, on all devices together.
        max_lora: maximum number of running adapters, and of loaded ones; the least recently used is unloaded.
        lora_load_seconds: time to load an adapter; the machine computes nothing meanwhile.
        max_model_len: maximum tokens of one request, prompt and output together.
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
    num_disk_blocks: int = 0
    disk_gbps: float = 6.5
    kv_bytes_per_token: int = 131_072
    max_lora: int = 1
    lora_load_seconds: float = 0.0
    max_model_len: int = 8192
    default_output_tokens: int = 32
    seed: int = 0
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        cache_tokens = self.block_size * self.num_gpu_blocks
        for field in ("prefill_tokens_per_second", "seconds_per_output_token", "host_gbps", "disk_gbps", "time_scale"):
            self._check(0 < getattr(self, field) < inf, f"{field} must be a positive number")
        for field in (
            *("max_num_seqs", "max_num_batched_tokens", "block_size"),
            *("num_gpu_blocks", "kv_bytes_per_token", "max_lora", "default_output_tokens"),
        ):
            self._check(getattr(self, field) >= 1, f"{field} must be at least 1")
        for field in (
            *("batch_slope", "lora_load_seconds", "prefill_step_seconds"),
            *("attention_tokens", "request_overhead_seconds", "num_host_blocks", "num_disk_blocks"),
        ):
            self._check(0 <= getattr(self, field) < inf, f"{field} must be 0 or more")
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

    def decode_seconds(self, count: int) -> float:
        """Return the duration of a step in which `count` requests decode, without `time_scale`."""
        return self.seconds_per_output_token * (1 + self.batch_slope * (count - 1)) if count else 0.0

    def _check(self, holds: object, problem: str) -> None:
        if not holds:
            raise ValueError(f"sim profile {self.name!r}: {problem}")

    @property
    def overhead_seconds(self) -> float:
        """`request_overhead_seconds` times `time_scale`."""
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
# Weights are 16 GB, or 8 GB (8 bit) on the slice and the T4, which cannot hold 16 GB and a cache; the workspace is
# 3 GB, or 2 GB. `derived_presets` computes the presets of other accelerators.
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


def derive_preset(
    name: str, *, fp16_tflops: float, bandwidth_gbps: float, memory_gb: float, host_gbps: float | None = None
) -> SimProfile | None:
    """Return the profile of one device by the formulas above `PRESETS`; None if its memory is too small."""
    default = SimProfile()
    for weights, workspace in _WEIGHTS_AND_WORKSPACE:
        cache_bytes = _MEMORY_SHARE * memory_gb * 1e9 - weights - workspace
        blocks = int(cache_bytes / (default.block_size * _KV_BYTES))
        if blocks * default.block_size >= default.max_model_len:
            return SimProfile(
                name=name,
                prefill_tokens_per_second=_rounded(_COMPUTE_SHARE * fp16_tflops * 1e12 / (2 * _PARAMETERS)),
                seconds_per_output_token=_rounded(weights / (_BANDWIDTH_SHARE * bandwidth_gbps * 1e9)),
                batch_slope=_rounded(_CONTEXT_TOKENS * _KV_BYTES / weights),
                num_gpu_blocks=blocks,
                host_gbps=host_gbps or _OTHER_HOST_GBPS,
                max_num_seqs=next(size for size in _BATCH_SIZES if size * _BLOCKS_PER_REQUEST <= blocks),
            )
    return None


@cache
def derived_presets() -> Mapping[str, SimProfile]:
    """Return presets by product and by model (with the figures of its usual product), except those in `PRESETS`."""
    found: dict[str, SimProfile] = {}
    for product in PRODUCTS:
        if product.fp16 and product.bandwidth_gbps and product.memory_bytes:
            for name in dict.fromkeys((product.name, product.model)):
                if name in found or name in PRESETS:
                    continue
                preset = derive_preset(
                    name,
                    fp16_tflops=product.fp16,
                    bandwidth_gbps=product.bandwidth_gbps,
                    memory_gb=product.memory_bytes / GIB,
                    host_gbps=product.host_gbps,
                )
                found |= {} if preset is None else {name: preset}
    return MappingProxyType(found)


def _rounded(value: float) -> float:
    """Return the value with three significant digits, the precision of a data sheet."""
    return float(f"{value:.3g}")


class FitError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative errors of the profile on held-out requests: 0.1 is 10 %."""

    requests: int
    ttft_median: float
    ttft_p90: float
    time_per_token_median: float
    time_per_token_p90: float


class ProfileSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origin of the figures of a server profile."""

    kind: Literal["measured", "published", "derived"]
    server: str = ""
    """URL of the measured server."""
    at: datetime | None = None
    requests: int = 0
    errors: FitError | None = None
    notes: tuple[str, ...] = ()
    """Fields that were not measured, and other reasons for uncertainty."""


def find_preset(name: str) -> SimProfile | None:
    """Return the preset of an accelerator, possibly derived from its data sheet; None if unknown."""
    return PRESETS.get(name) or derived_presets().get(name)


def find_server_profile(name: str, setting: str) -> SimProfile:
    """Return the preset `name`, or the profile in the file `name`; raises ConfigurationError that names the setting."""
    if (preset := find_preset(name)) is not None:
        return preset
    path = Path(name)
    if not path.exists():
        known = [*PRESETS, *derived_presets()]
        listed = f"the presets are {', '.join(PRESETS)}, and other accelerators such as l40s, b200 and mi300x"
        raise ConfigurationError(
            f"{setting}: there is no preset and no file {name!r}", remedy=hint_at(name, known, listed)
        )
    return load_server_profile(path)


def load_server_profile(path: Path) -> SimProfile:
    """Return the profile in a YAML file; raises ConfigurationError that names file, field and remedy."""
    where = f"server profile {str(path)!r}"
    try:
        fields = read_mapping(path)
        source = fields.pop("source", None)
        if source is not None:
            read_struct(_Sourced, {"source": source})
        return read_struct(SimProfile, fields)
    except ParameterError as error:
        raise ConfigurationError(f"{where}: {error.at('') if error.path else error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def dump_server_profile(profile: SimProfile, source: ProfileSource) -> str:
    """Return YAML for `load_server_profile`, including fields with default values."""
    content = {"source": msgspec.to_builtins(source), **msgspec.to_builtins(profile)}
    return msgspec.yaml.encode(content).decode()


class _Sourced(msgspec.Struct, frozen=True):
    source: ProfileSource
