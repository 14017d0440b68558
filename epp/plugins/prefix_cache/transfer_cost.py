# SPDX-License-Identifier: Apache-2.0
"""Produce the time in which each endpoint brings cached blocks of the prompt to its accelerator."""

import numpy as np

from epp.framework import (
    ACCELERATOR,
    ENDPOINT_RATES,
    FETCH_SECONDS,
    PREFIX_MATCH,
    PULLED_TOKENS,
    AcceleratorTag,
    Candidates,
    Count,
    Name,
    NonNegative,
    Parameters,
    PrefixMatch,
    Producer,
    Request,
)
from epp.framework.accelerators.tag import HOST_GBPS, NETWORK_GBPS
from epp.framework.arrays import Floats

_GIGA = 1e9
_OTHER_HOST_GBPS = 32.0
"""Of devices whose link to the host is unknown: 16 lanes of PCIe 4, in one direction."""


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
    copies_from_peers: bool = False
    """Whether endpoints copy blocks of others, as connectors of vLLM do with `p2p-source-producer`."""
    peer_gigabytes_per_second: NonNegative = 0.0
    """Bandwidth of the network of each endpoint; 0 for that of its machine type. If that is unknown, too, it copies
    nothing."""
    efficiency: NonNegative = 0.8
    """Share of these bandwidths that transfers reach; above 0."""
    prefix_match_info_producer_name: str = "precise-prefix-cache-producer"
    """Name of the producer instance whose matches have the tiers."""

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency:g}; it must be above 0 and at most 1")


class KvTransferCost(Producer[KvTransferCostParameters]):
    """Publishes, for each slot, the seconds to fetch the cached blocks that only lower tiers or other endpoints hold.

    `seconds = sum over tiers (tokens whose best tier it is * kvBytesPerToken / (efficiency * bandwidth))`. The
    bandwidth of host memory is that of PCIe, by the accelerator of the endpoint, times its devices.
    `work-seconds-scorer` adds this time to that of the uncached tokens: a block in host memory then costs more than one
    in the accelerator's memory, and less than a missing one if it is fetched sooner than computed.

    With `copiesFromPeers`, an endpoint may copy what the best other one holds beyond its own blocks: in host memory, if
    tiers are known. `seconds = tokens * kvBytesPerToken / (efficiency * bandwidth)`, by the slower network of both.
    It does so if that takes less time than to compute these tokens, by `endpoint-rates-producer` (without it, always).
    `work-seconds-scorer` counts such tokens as cached, and `p2p-source-producer` names no source where it is slower.
    """

    plugin_type = "kv-transfer-cost"
    writes = (FETCH_SECONDS, PULLED_TOKENS)
    may_read = (ACCELERATOR, ENDPOINT_RATES)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._match_key,)
        self._bytes = self.parameters.kv_bytes_per_token / (_GIGA * self.parameters.efficiency)
        """In GB, as if all of the bandwidth were reached."""

    def produce(self, request: Request, candidates: Candidates) -> None:
        match = request.get(self._match_key)
        if match is None or not (match.tier_tokens or self.parameters.copies_from_peers):
            return
        seconds = np.zeros(candidates.snapshot.capacity)
        tags = candidates.snapshot.records(ACCELERATOR)
        for tier in self.parameters.tiers:
            tokens = match.tier_tokens.get(tier.name.lower())
            if tokens is not None:
                speed = tier.gigabytes_per_second or tags.derive_numbers(_host_gbps)
                seconds += tokens * self._bytes / speed
        if self.parameters.copies_from_peers and len(candidates):
            seconds += self._copy(request, candidates, match)
        request.put(FETCH_SECONDS, seconds)

    def _copy(self, request: Request, candidates: Candidates, match: PrefixMatch) -> Floats:
        """Publish the tokens that are worth copying from the best peer; return the seconds for that."""
        given, copyable = self.parameters.peer_gigabytes_per_second, match.copyable_tokens
        best = candidates.slots[np.argmax(copyable[candidates.slots])]
        speed = candidates.snapshot.records(ACCELERATOR).derive_numbers(_network_gbps)
        speed = np.full(len(speed), given) if given else np.minimum(speed, speed[best])
        tokens = np.maximum(copyable[best] - match.tokens, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = tokens * self._bytes / speed
            rates = request.get(ENDPOINT_RATES)
            limit = np.inf if rates is None else tokens / rates.prefill_tokens_per_second
        pays = (tokens > 0) & (seconds < limit)
        request.put(PULLED_TOKENS, np.where(pays, tokens, 0))
        return np.where(pays, seconds, 0.0)


def _host_gbps(tag: AcceleratorTag) -> float:
    """Return the PCIe bandwidth of all devices of an endpoint, in GB/s."""
    return _number(tag, HOST_GBPS, _OTHER_HOST_GBPS) * max(tag.count, 1)


def _network_gbps(tag: AcceleratorTag) -> float:
    """Return the network bandwidth of an endpoint by its share of the devices, in GB/s; 0 for unknown."""
    return _number(tag, NETWORK_GBPS, 0.0) * max(tag.count, 1)


def _number(tag: AcceleratorTag, name: str, default: float) -> float:
    found = tag.attributes.get(name)
    return float(found) if isinstance(found, int | float) and found > 0 else default
