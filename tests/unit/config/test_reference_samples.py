# SPDX-License-Identifier: Apache-2.0
"""Files written for llm-d-router: what they come to here, and which of its plugin types there are."""

import pytest

from epp.config.model import NOT_YET, WITHOUT_TASK
from epp.framework import Admitter, Endpoint, Producer
from epp.framework.registry import Registry

PREFIX_AND_LOAD = """\
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: no-hit-lru-scorer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
"""

PRECISE_PREFIX = """\
plugins:
- type: token-producer
  parameters: {modelName: Qwen/Qwen3-8B, vllm: {url: "http://localhost:8000"}}
- {type: endpoint-notification-source}
- type: precise-prefix-cache-producer
  parameters:
    speculativeIndexing: true
    tokenProcessorConfig: {blockSizeTokens: 16}
    kvEventsConfig: {topicFilter: "kv@", concurrency: 32, discoverPods: true, podDiscoveryConfig: {socketPort: 5557}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
- {type: no-hit-lru-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
- {type: kv-cache-utilization-scorer}
- {type: active-request-scorer}
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 4}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
"""

PREFILL_DECODE = """\
featureGates: [flowControl]
plugins:
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefill-filter}
- {type: decode-filter}
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: active-request-scorer}
- {type: round-robin-fairness-policy}
- {type: concurrency-detector, parameters: {maxConcurrency: 132, concurrencyMode: requests}}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 2}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: active-request-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxBytes: 10Gi
  defaultRequestTTL: 60s
  priorityBands:
  - {priority: 100, maxRequests: "500", fairnessPolicyRef: round-robin-fairness-policy}
  - {priority: 0, maxRequests: "200", fairnessPolicyRef: round-robin-fairness-policy}
  - {priority: -10, maxRequests: "50", fairnessPolicyRef: round-robin-fairness-policy}
"""


PREDICTED_LATENCY = """\
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: metrics-data-source, parameters: {scheme: http, path: /metrics, insecureSkipVerify: true}}
- {type: core-metrics-extractor}
- {type: predicted-latency-producer}
- type: prefix-cache-affinity-filter
  name: strict-affinity-filter
  parameters: {affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- type: prefix-cache-affinity-filter
  name: loose-affinity-filter
  parameters: {affinityThreshold: 0.80, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- {type: latency-scorer}
- {type: weighted-random-picker}
- {type: slo-headroom-tier-filter}
- {type: latency-slo-admitter}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: predicted-latency-producer}
  - {pluginRef: strict-affinity-filter}
  - {pluginRef: slo-headroom-tier-filter}
  - {pluginRef: loose-affinity-filter}
  - {pluginRef: latency-scorer}
  - {pluginRef: weighted-random-picker}
"""


def test_gie_11_predicted_latency_of_the_chart_assembles_and_its_parts_are_in_effect(build):
    assembly = build(PREDICTED_LATENCY)
    assert [str(one) for one in assembly.warnings if "-scorer' has no effect: no profile" not in str(one)] == []
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    filters = [one.filter.name for one in profile.filters]
    assert filters == ["strict-affinity-filter", "slo-headroom-tier-filter", "loose-affinity-filter"]
    assert [one.scorer.name for one in profile.scorers] == ["latency-scorer"]
    admitters = [admitter.name for admitter in assembly.pipeline.of(Admitter)]
    assert admitters == ["predicted-latency-producer", "latency-slo-admitter"]


HUB_LATENCY = """\
plugins:
- {type: latency-observer-producer-hub, name: ttft-observer, parameters: {intervalDuration: 1s, minRequests: 10}}
- {type: latency-observation-scorer-hub, name: ttft, parameters: {ttftPercentilesProducerName: ttft-observer}}
- {type: max-score-picker}
- {type: single-profile-handler}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: ttft}, {pluginRef: max-score-picker}]}
dataLayer: {sources: [{pluginRef: ttft-observer}]}
"""


def test_gie_11_observed_latency_of_a_hub_assembles_without_a_warning(build):
    assembly = build(HUB_LATENCY, experimental=True)
    assert assembly.warnings == ()
    assert "ttft-observer" in [producer.name for producer in assembly.pipeline.of(Producer)]


def test_admitter_that_reads_predictions_runs_after_the_one_that_waits_for_them(build):
    admitters = build("plugins: [{type: latency-slo-admitter}, {type: queue-scorer}]").pipeline.of(Admitter)
    assert [admitter.name for admitter in admitters] == ["predicted-latency-producer", "latency-slo-admitter"]


def test_gie_11_prefix_and_load_assembles_without_a_warning_and_its_producer_is_added(build):
    assembly = build(PREFIX_AND_LOAD)
    assert assembly.warnings == ()
    assert [producer.name for producer in assembly.pipeline.of(Producer)] == ["approx-prefix-cache-producer"]
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    assert [(one.scorer.name, one.weight) for one in profile.scorers] == [
        ("queue-scorer", 2.0),
        ("kv-cache-utilization-scorer", 2.0),
        ("prefix-cache-scorer", 3.0),
        ("no-hit-lru-scorer", 2.0),
    ]
    assert profile.picker.name == "max-score-picker"


@pytest.mark.parametrize(
    ("tokenizer", "warnings"),
    [
        (', vllm: {url: "http://localhost:8000"}', 0),
        (", udsTokenizerConfig: {socketFile: /tmp/tokenizer/tokenizer-uds.socket}", 0),
        ("", 1),
    ],
    ids=["vLLM", "service on a Unix socket", "none"],
)
def test_gie_11_precise_prefix_assembles_and_its_token_ids_are_made_before_they_are_looked_up(
    build, tokenizer, warnings
):
    assembly = build(PRECISE_PREFIX.replace(', vllm: {url: "http://localhost:8000"}', tokenizer))
    assert sum("http://localhost:8000" in str(warning) for warning in assembly.warnings) == warnings
    names = [producer.name for producer in assembly.pipeline.of(Producer)]
    assert names.index("token-producer") < names.index("precise-prefix-cache-producer")
    assert assembly.pipeline.reads_content


def test_gie_11_prefill_decode_assembles_and_its_flow_control_is_in_effect(build):
    assembly = build(PREFILL_DECODE)
    assert list(assembly.pipeline.scheduler.profiles) == ["prefill", "decode"]
    assert assembly.pipeline.scheduler.profile_picker.name == "disagg-profile-handler"
    assert not [warning for warning in assembly.warnings if "flow" in str(warning).lower()]
    flow = assembly.pipeline.flow_control
    assert (flow.detector.name, flow.limits.size_bytes) == ("concurrency-detector", 10 * 2**30)
    assert {priority: band.limits.requests for priority, band in flow.bands.items()} == {100: 500, 0: 200, -10: 50}
    assert {band.fairness.name for band in flow.bands.values()} == {"round-robin-fairness-policy"}


MULTIMODAL = """\
plugins:
- {type: queue-scorer}
- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: 8192}}
- {type: mm-embeddings-cache-scorer, parameters: {producerName: mm-embeddings-cache-producer}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: mm-embeddings-cache-scorer, weight: 10}, {pluginRef: queue-scorer}]}
"""

P2P = """\
plugins:
- {type: queue-scorer}
- {type: precise-prefix-cache-producer}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
- type: p2p-source-producer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer, minCachedTokenDelta: 512}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: queue-scorer}]}
"""

BURST = """\
plugins:
- {type: queue-scorer}
- type: burst-prefix-cache-producer
  parameters:
    {windowDurationMs: 50, maxPerReplica: 8, blockSizeTokens: 64, maxPrefixTokensToMatch: 4096, minColocateBlocks: 4,
     maxBatchSize: -1, balanceBy: tokens}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: queue-scorer}]}
"""

GRPC = """\
plugins: [{type: vllmgrpc-parser}, {type: vertexai-parser}, {type: openai-parser}, {type: queue-scorer}]
requestHandler:
  parsers: [{pluginRef: vllmgrpc-parser}, {pluginRef: vertexai-parser}, {pluginRef: openai-parser}]
"""


@pytest.mark.parametrize(("text", "roles"), [(MULTIMODAL, 1), (P2P, 2), (BURST, 1)])
def test_gie_11_caches_of_media_copies_and_bursts_assemble_without_a_warning(build, text, roles):
    assembly = build(text, experimental=True)
    assert assembly.warnings == ()
    assert len(assembly.pipeline.of(Producer)) == roles


def test_gie_11_parser_of_a_grpc_api_gets_its_methods_and_what_nobody_claims(build):
    assembly = build(GRPC)
    assert assembly.warnings == ()
    for path, parser in {
        "/vllm.grpc.engine.VllmEngine/Generate": "vllmgrpc-parser",
        "/vllm.grpc.engine.VllmEngine/HealthCheck": "vllmgrpc-parser",
        "/google.cloud.aiplatform.v1beta1.PredictionService/RawPredict": "vertexai-parser",
        "/v1/chat/completions": "openai-parser",
    }.items():
        assert assembly.pipeline.parsers.find(path)[1].name == parser


SINCE_V1 = """\
plugins: [{type: queue-scorer}, {type: file-discovery, name: pool, parameters: {path: pool.yaml}}]
dataLayer:
  discovery: {endpoints: {pluginRef: pool}, peers: {pluginRef: peers}}
  crossReplica: {syncerPluginRef: syncer, syncInterval: 500ms, publishTimeout: 2s}
flowControl: {maxRequests: 1k, priorityBands: [{priority: 10, defaultRequestTTL: 5s}]}
requestHandler: {propagatePriority: true}
"""
BEFORE_V1 = """\
plugins: [{type: queue-scorer}, {type: file-discovery, name: pool, parameters: {path: pool.yaml}}]
dataLayer:
  discovery: {pluginRef: pool}
  crossReplicaSyncerPluginRef: syncer
  crossReplicaSyncInterval: 500ms
  crossReplicaPublishTimeout: 2s
flowControl: {maxRequests: 1k, priorityBands: [{priority: 10, defaultRequestTTL: 5s}]}
requestHandler: {propagatePriority: true}
"""
V1 = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


@pytest.mark.parametrize(
    "text", [V1 + SINCE_V1, V1.replace("v1", "v1alpha1") + SINCE_V1, V1.replace("v1", "v1alpha1") + BEFORE_V1]
)
def test_gie_11_files_of_both_spellings_come_to_the_same(build, text):
    assembly = build(text, head="")
    assert assembly.discovery.name == "pool"
    assert assembly.loaded.model.flow_control.priority_bands[0].default_request_ttl == 5.0


def test_exchange_between_replicas_by_these_keys_is_without_effect(warned):
    assert [line for line in warned(SINCE_V1, head=V1) if "has no effect" in line] == [
        "c.yaml:5:45: dataLayer.discovery.peers: has no effect: replicas do not exchange data yet",
        "c.yaml:6:3: dataLayer.crossReplica: has no effect: replicas do not exchange data yet",
        "c.yaml:7:1: flowControl: has no effect: feature gate flowControl is off",
    ]


def test_of_two_spellings_of_discovery_at_once_the_newer_one_counts(build):
    assembly = build(SINCE_V1.replace("peers: {pluginRef: peers}", "pluginRef: nobody"))
    assert assembly.discovery.name == "pool"
    assert any(
        "discovery.pluginRef: has no effect besides discovery.endpoints" in str(one) for one in assembly.warnings
    )


def test_sketch_of_output_lengths_is_accepted_with_a_warning(build, warned):
    text = """\
plugins:
- type: inflight-load-producer
  parameters: {addEstimatedOutputTokens: true, outputEstimator: sketch, sketch: {windowChars: 2000}}
- {type: token-load-scorer}
"""
    assert any("outputEstimator: sketch is not supported: outputs are estimated as" in line for line in warned(text))
    assert not any("sketch" in line for line in warned(text.replace("outputEstimator: sketch, ", "")))


TURN_PRIORITY = """\
featureGates: [flowControl]
plugins:
- {type: program-aware-fairness, parameters: {strategy: turn-priority}}
- {type: agent-identity}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 32}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
flowControl:
  enableEviction: true
  saturationDetector: {pluginRef: concurrency-detector}
  priorityBands:
  - {priority: -1, defaultRequestTTL: "9000s", fairnessPolicyRef: program-aware-fairness}
  - {priority: 0}
"""


def test_guide_to_turn_priority_assembles_and_orders_one_band(build):
    flow = build(TURN_PRIORITY, experimental=True).pipeline.flow_control
    assert (flow.bands[-1].fairness.name, flow.bands[-1].ttl_seconds) == ("program-aware-fairness", 9000.0)
    assert flow.bands[0].fairness.name != "program-aware-fairness"
    given = flow.bands[-1].fairness.parameters
    assert (given.turn_priority_time_weight, given.turn_priority_inactivity_seconds) == (0.05, 120.0)


def test_dcgm_exporter_of_a_daemon_set_is_polled_at_the_node(build):
    assembly = build("""\
plugins:
- {type: dcgm-data-source, name: dcgm-source, parameters: {port: 9400, useNodeAddress: true}}
- {type: dcgm-extractor}
dataLayer: {sources: [{pluginRef: dcgm-source, extractors: [{pluginRef: dcgm-extractor}]}]}
""")
    source = next(feed.source for feed in assembly.feeds if feed.source.name == "dcgm-source")
    assert source.place(Endpoint("e", "10.0.0.1", 8000, node_address="10.1.0.7")) == ("10.1.0.7", 9400, "")
    assert source.place(Endpoint("e", "10.0.0.1", 8000)) == ("10.0.0.1", 9400, "")


def words(text: str) -> set[str]:
    return set(text.split())


UPSTREAM = {
    "screeners": words("disaggregatedset-rollout-screener"),
    "filters": words("""
        label-selector-filter by-label-selector by-label encode-filter decode-filter prefill-filter
        session-affinity-filter multicluster-session-affinity-filter endpoint-attribute-filter
        topology-affinity-filter utilization-filter prefix-cache-affinity-filter slo-headroom-tier-filter
        header-based-testing-filter
    """),
    "scorers": words("""
        queue-scorer running-requests-size-scorer kv-cache-utilization-scorer lora-affinity-scorer
        prefix-cache-scorer precise-prefix-cache-scorer token-load-scorer load-aware-scorer active-request-scorer
        no-hit-lru-scorer session-affinity-scorer header-label-affinity-scorer context-length-aware
        mm-embeddings-cache-scorer latency-scorer endpoint-attribute-scorer topology-affinity-scorer
        latency-observation-scorer-hub
        multicluster-queue-scorer multicluster-kv-cache-utilization-scorer multicluster-prefix-cache-scorer
    """),
    "pickers": words("max-score-picker random-picker weighted-random-picker"),
    "profile handlers and deciders": words("""
        single-profile-handler data-parallel-profile-handler disagg-profile-handler pd-profile-handler
        header-profile-handler disagg-headers-handler prefill-header-handler always-disagg-pd-decider
        prefix-based-pd-decider always-disagg-multimodal-decider
    """),
    "data layer": words("""
        metrics-data-source core-metrics-extractor models-data-source models-data-extractor dcgm-data-source
        dcgm-extractor topology-extractor k8s-notification-source endpoint-notification-source file-discovery
        multicluster-file-discovery multicluster-metrics-data-source multicluster-metrics-extractor
    """),
    "producers": words("""
        token-producer tokenizer approx-prefix-cache-producer multicluster-approx-prefix-cache-producer
        precise-prefix-cache-producer burst-prefix-cache-producer inflight-load-producer
        predicted-latency-producer mm-embeddings-cache-producer session-id-producer p2p-source-producer
        latency-observer-producer-hub
    """),
    "request control": words("""
        latency-slo-admitter probabilistic-admitter request-attribute-reporter agent-identity outlen-bucket
        destination-endpoint-served-verifier models-responder reserve-endpoint endpoint-pin-screener thunder-agent
    """),
    "flow control": words("""
        global-strict-fairness-policy round-robin-fairness-policy program-aware-fairness fcfs-ordering-policy
        edf-ordering-policy slo-deadline-ordering-policy static-usage-limit-policy priority-holdback-policy
        soft-reflective-ceiling-policy utilization-detector concurrency-detector sheddable-eviction-filter
        priority-then-time-eviction-order-policy
    """),
    "parsers": words("""
        openai-parser anthropic-parser vllmhttp-parser sglanghttp-parser vllmgrpc-parser vertexai-parser
        passthrough-parser
    """),
}
"""All plugin types that llm-d-router registers, or has in configurations that it ships."""


def test_gie_12_every_type_of_llm_d_router_is_registered_or_known_by_name_in_one_way_only():
    upstream = set().union(*UPSTREAM.values())
    assert len(upstream) == sum(map(len, UPSTREAM.values())) == 104
    assert upstream <= set(Registry().types) | set(WITHOUT_TASK) | NOT_YET
    ways = [set(Registry().types), set(WITHOUT_TASK), set(NOT_YET)]
    assert sum(map(len, ways)) == len(set().union(*ways))


@pytest.mark.parametrize("kind", sorted(NOT_YET))
def test_type_that_is_not_built_yet_is_refused_by_name(refused, kind):
    (problem,) = refused(f"plugins: [{{type: {kind}}}]")
    assert str(problem) == f"c.yaml:3:12: plugins[0].type: plugin type '{kind}' is known but not supported yet"
