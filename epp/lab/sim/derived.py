# SPDX-License-Identifier: Apache-2.0
"""Presets of the accelerators in the catalogue, computed from the figures of their data sheets."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from epp.framework.quantities import GIB
from epp.hardware.catalogue import PRODUCTS
from epp.lab.sim.profile import PRESETS, SimProfile

_PARAMETERS = 8e9
_COMPUTE_SHARE, _BANDWIDTH_SHARE, _MEMORY_SHARE = 0.4, 0.7, 0.92
"""Shares of the figures of a data sheet that an engine reaches or uses."""
_KV_BYTES = 128 * 1024
"""Of one token."""
_CONTEXT_TOKENS = 1024
"""Of each request in a batch."""
_WEIGHTS_AND_WORKSPACE = ((16e9, 3e9), (8e9, 2e9))
"""Bytes in 16 bits, and in 8 bits for devices that could not hold the former and a cache."""
_OTHER_HOST_GBPS = 32.0
"""Of devices whose link to the host is unknown: 16 lanes of PCIe 4."""
_BLOCKS_PER_REQUEST = 30
_BATCH_SIZES = (256, 128, 64, 32, 16)


def derive_preset(
    name: str, *, fp16_tflops: float, bandwidth_gbps: float, memory_gb: float, host_gbps: float | None = None
) -> SimProfile | None:
    """Return the profile of one device by the formula beside `PRESETS`; None if its memory is too small."""
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
    """Return presets by product, and by model with the figures of its usual product; those of `PRESETS` excepted."""
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
    """Return the value with three significant digits: a data sheet does not say more."""
    return float(f"{value:.3g}")
