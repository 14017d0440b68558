# SPDX-License-Identifier: Apache-2.0
"""Produce the time in which each endpoint brings the prompt's cached blocks from lower tiers to its accelerator."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from epp.framework import (
    ACCELERATOR,
    FETCH_SECONDS,
    PREFIX_MATCH,
    AcceleratorTag,
    Candidates,
    Count,
    Name,
    NonNegative,
    Parameters,
    Producer,
    Request,
)

_GIGA = 1e9
_HOST_GBPS: Mapping[tuple[str, int], float] = MappingProxyType(
    {
        **dict.fromkeys((("nvidia", major) for major in (6, 7)), 16.0),
        ("nvidia", 8): 32.0,
        **dict.fromkeys((("nvidia", major) for major in (9, 10, 12)), 64.0),
    }
)
"""PCIe of one device, in GB/s in one direction, by vendor and major compute capability: 16 lanes of generation 3
(Pascal, Volta, Turing), 4 (Ampere, Ada) and 5 (Hopper, Blackwell), by the data sheets of P100, A100 and H100."""
_OTHER_HOST_GBPS = 32.0
"""Likewise, of other and unknown devices: generation 4."""


class TierSpeed(Parameters, frozen=True):
    """The speed of a tier."""

    name: Name
    """Name of the tier in KV events, such as cpu or disk."""
    gigabytes_per_second: NonNegative = 0.0
    """Read bandwidth for the whole endpoint; 0 for the PCIe bandwidth of all its devices."""


class KvTransferCostParameters(Parameters, frozen=True):
    """Size of the KV cache of a token, and speeds of tiers."""

    kv_bytes_per_token: Count = 131_072
    """Bytes of one token in the KV cache, on all devices together: `2 * layers * KV heads * head size * bytes of a
    number`. The default is that of Llama 3.1 8B with 16 bits: 2 * 32 * 8 * 128 * 2."""
    tiers: tuple[TierSpeed, ...] = (TierSpeed(name="cpu"), TierSpeed(name="disk", gigabytes_per_second=6.5))
    """Lower tiers; a tier that is not listed costs nothing. The default of disk is the read bandwidth of an NVMe drive
    on PCIe 4.0, such as the Samsung PM9A3."""
    efficiency: NonNegative = 0.8
    """Share of these bandwidths that transfers reach; above 0."""
    prefix_match_info_producer_name: str = "precise-prefix-cache-producer"
    """Name of the producer instance whose matches have the tiers."""

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency:g}; it must be above 0 and at most 1")


class KvTransferCost(Producer[KvTransferCostParameters]):
    """Publishes, for each slot, the seconds to fetch the cached blocks that only lower tiers hold.

    `seconds = sum over tiers (tokens whose best tier it is * kvBytesPerToken / (efficiency * bandwidth))`. The
    bandwidth of host memory is that of PCIe, by the accelerator of the endpoint, times its devices.
    `work-seconds-scorer` adds this time to that of the uncached tokens: a block in host memory then costs more than one
    in the accelerator's memory, and less than a missing one if it is fetched sooner than computed. Blocks of other
    endpoints are not considered.
    """

    plugin_type = "kv-transfer-cost"
    writes = (FETCH_SECONDS,)
    may_read = (ACCELERATOR,)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._match_key,)
        self._bytes = self.parameters.kv_bytes_per_token / (_GIGA * self.parameters.efficiency)
        """In GB, as if all of the bandwidth were reached."""

    def produce(self, request: Request, candidates: Candidates) -> None:
        match = request.get(self._match_key)
        if match is None or not match.tier_tokens:
            return
        seconds = np.zeros(candidates.snapshot.capacity)
        for tier in self.parameters.tiers:
            tokens = match.tier_tokens.get(tier.name.lower())
            if tokens is not None:
                tags = candidates.snapshot.records(ACCELERATOR)
                speed = tier.gigabytes_per_second or tags.derive_numbers(_host_gbps)
                seconds += tokens * self._bytes / speed
        request.put(FETCH_SECONDS, seconds)


def _host_gbps(tag: AcceleratorTag) -> float:
    """Return the PCIe bandwidth of all devices of an endpoint, in GB/s."""
    major = tag.compute_capability[0] if tag.compute_capability else 0
    return _HOST_GBPS.get((tag.vendor, major), _OTHER_HOST_GBPS) * max(tag.count, 1)
