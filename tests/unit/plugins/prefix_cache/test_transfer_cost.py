# SPDX-License-Identifier: Apache-2.0
"""Time to fetch cached blocks from lower tiers, and its part in the expected time to the first token."""

import numpy as np
import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock, PrefixMatch, Request, RequestBody
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.registry import Registry
from epp.framework.request import FETCH_SECONDS, PREFIX_MATCH, PULLED_TOKENS
from epp.framework.testing import candidates, endpoint_rates
from tests.support.documents import blocks
from tests.support.wheels import REPOSITORY

MATCH = PREFIX_MATCH.produced_by("precise-prefix-cache-producer")
A100 = AcceleratorTag(attributes={"epp/host-gbps": 32.0, "epp/network-gbps": 6.25}, count=1)
H100 = AcceleratorTag(attributes={"epp/host-gbps": 64.0, "epp/network-gbps": 50.0}, count=2)
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: accelerator-data-source
- type: precise-prefix-cache-producer
- type: kv-transfer-cost
- type: endpoint-rates-producer
- type: work-seconds-scorer
  parameters: {outputTokens: 0, kvBarrierSeconds: 0, prefixMatchInfoProducerName: precise-prefix-cache-producer}
"""


def build(plugin="kv-transfer-cost", **parameters):
    return Registry().build(plugin, parameters, name=plugin, clock=ManualClock())


def request_of(held, **tiers) -> Request:
    """Return a request of 10,000 tokens, of which endpoints hold these numbers, some of them in lower tiers."""
    request = Request("r", RequestBody(prompt_tokens=10_000))
    of_tiers = {tier: np.array(tokens) for tier, tokens in tiers.items()}
    blocks = np.array(held, dtype=np.int32) // 16
    request.put(MATCH, PrefixMatch(blocks, 625, 16, np.array(held), tier_tokens=of_tiers))
    return request


def test_seconds_are_bytes_over_the_bandwidth_of_the_tier():
    request = request_of([8000, 8000, 8000], cpu=[8000, 8000, 0], disk=[0, 0, 8000])
    build().produce(request, candidates(accelerators=[A100, H100, H100]))
    # 8000 tokens * 131072 bytes = 1.049 GB, at 80 % of 32 GB/s, of 2 * 64 GB/s, and of 6.5 GB/s for the endpoint
    assert request.get(FETCH_SECONDS) == pytest.approx([0.04096, 0.01024, 0.20165], rel=1e-4)


def test_bandwidth_and_size_may_be_given():
    tiers = [{"name": "CPU", "gigabytesPerSecond": 10}]
    request = request_of([1000], cpu=[1000], disk=[5000])
    build(kvBytesPerToken=1_000_000, efficiency=1, tiers=tiers).produce(request, candidates(accelerators=[A100]))
    assert request.get(FETCH_SECONDS) == pytest.approx([0.1])  # 1 GB at 10 GB/s; the disk is not listed


def copied(accelerators, rates=None, **parameters) -> tuple[list[int], list[float]]:
    """Return tokens to copy and seconds; 8,000, 2,000 and 0 tokens are held, of 131,072 bytes: 1.05 GB of the first."""
    request = request_of([8000, 2000, 0])
    if rates:
        request.put(ENDPOINT_RATES, endpoint_rates(rates))
    build(copiesFromPeers=True, efficiency=1, **parameters).produce(request, candidates(accelerators=accelerators))
    return request.get(PULLED_TOKENS).tolist(), request.get(FETCH_SECONDS).tolist()


def test_copy_from_the_peer_that_holds_most_takes_the_slower_network_of_both():
    tokens, seconds = copied([H100, H100, A100])
    assert tokens == [0, 6000, 8000]
    assert seconds == pytest.approx([0, 0.786432 / 100, 1.048576 / 6.25])
    _, seconds = copied([H100, H100, A100], peerGigabytesPerSecond=10)
    assert seconds == pytest.approx([0, 0.0786432, 0.1048576])


def test_copy_that_takes_longer_than_the_computation_or_an_unknown_time_is_not_made():
    # at 10,000 tokens a second, 0.6 s and 0.8 s; at 1 GB/s, 0.79 s and 1.05 s
    assert copied([H100] * 3, [1e4, 1e4, 5e3], peerGigabytesPerSecond=1)[0] == [0, 0, 8000]
    assert copied([H100, AcceleratorTag(), A100])[0] == [0, 0, 8000]


def test_expected_time_counts_copied_tokens_as_cached():
    request = request_of([8000, 0])
    request.put(ENDPOINT_RATES, endpoint_rates([10_000, 10_000]))
    pool = candidates(accelerators=[H100, H100], running=[0, 0], waiting=[0, 0], kv_usage=[0, 0])
    build(copiesFromPeers=True, efficiency=1, peerGigabytesPerSecond=10).produce(request, pool)
    scorer = build("work-seconds-scorer", outputTokens=0, prefixMatchInfoProducerName="precise-prefix-cache-producer")
    assert scorer.seconds(request, pool) == pytest.approx([0.2, 0.2 + 0.1048576])


def test_matches_without_tiers_cost_nothing():
    request = request_of([1000])
    build().produce(request, candidates(accelerators=[A100]))
    assert request.get(FETCH_SECONDS) is None


def test_expected_time_has_the_blocks_of_lower_tiers_between_cached_and_uncached_ones():
    clock = ManualClock()
    assembly = assemble(load_text(CONFIG), Builder(Registry(), clock))
    plugins = {plugin.name: plugin for plugin in assembly.plugins}
    request = request_of([8000, 8000, 0], cpu=[0, 8000, 0])
    request.put(ENDPOINT_RATES, endpoint_rates([10_000, 10_000, 10_000]))
    pool = candidates(accelerators=[A100] * 3, running=[0, 0, 0], waiting=[0, 0, 0], kv_usage=[0, 0, 0])
    plugins["kv-transfer-cost"].produce(request, pool)
    # 2000 tokens at 10,000 a second; the same and the fetch; all 10,000
    assert plugins["work-seconds-scorer"].seconds(request, pool) == pytest.approx([0.2, 0.24096, 1.0])


def test_configuration_of_the_guide_is_valid():
    (block,) = (
        each for each in blocks(REPOSITORY / "docs/precise-prefix-caches.md") if "kv-transfer-cost" in each.text
    )
    assembly = assemble(load_text(block.text), Builder(Registry(), ManualClock()))
    assert not assembly.warnings
    assert {plugin.plugin_type for plugin in assembly.plugins} >= {"kv-transfer-cost", "work-seconds-scorer"}
