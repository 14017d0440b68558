# SPDX-License-Identifier: Apache-2.0
"""Configurations of all plugins that take part in requests, alone and together, and requests for them."""

from importlib.metadata import entry_points
from pathlib import Path

from epp.framework.plugin import roles_of
from epp.routing.director import PoolPolicies

SAMPLES = Path(__file__).parents[3] / "config"
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PARAMETERS = {
    "by-label": "{label: zone, validValues: [a]}",
    "by-label-selector": "{matchLabels: {zone: a}}",
    "cluster-score": "{scoreName: gpuClusterAvailable}",
    "disaggregatedset-rollout-screener": "{scope: {labelSelector: app=x}, revisionGating: {mode: sum, requireRoles: "
    "{values: [decode]}, revisionLabelKey: zone, roleLabelKey: role}, headerSelectors: [{name: z, headerName: x-zone, "
    "labelKey: zone, mode: strict}]}",
    "endpoint-attribute-filter": "{attribute: waiting, algorithm: {threshold: {operator: LessThanOrEqual, value: 6}}}",
    "endpoint-attribute-scorer": "{attributeKey: waiting, algorithm: {type: linear_lower_is_better}}",
    "header-label-affinity-scorer": "{headerName: x-zone, labelKey: zone}",
    "label-selector-filter": "{matchLabels: {zone: a}}",
    "placement-filter": "{placement: default/p}",
    "preference-order-scorer": "{preferenceOrder: [{class: a100}]}",
    "probabilistic-admitter": "{queueDepthThreshold: 1}",
    "tenants": "{tenants: [{name: gold, fairnessIds: [f1]}]}",
    "utilization-filter": "{conditions: [{metric: waiting-queue, maxValue: 6}]}",
}
"""Where a type has none by default, or does nothing by default."""
TAKES_PART = {
    "Filter", "Scorer", "Picker", "Producer", "RequestHeaders", "Screener", "Admitter", "ProfilePicker", "Aggregator",
    "Parser", "PreRequest", "QuotaSource",
}  # fmt: skip
"""Roles of types that a configuration of one plugin puts to use."""
ALONE = sorted(
    point.name
    for point in entry_points(group="epp.plugins")
    if TAKES_PART & {role.__name__ for role in roles_of(point.load())}
    and point.name
    not in {
        "header-based-testing-filter",
        "tenant-quotas",
        "disagg-profile-handler",
        "pd-profile-handler",
        "kv-transfer-cost",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-queue-scorer",
    }
)
"""The others need more than themselves: they are among those below."""
TOGETHER = {
    "full servers": """
        featureGates: [flowControl]
        plugins:
        - {type: queue-scorer}
        - {type: endpoint-rates-producer}
        - {type: work-seconds-detector}
        - {type: soft-reflective-ceiling-policy, name: ceilings}
        - {type: program-aware-fairness, name: fairness}
        flowControl:
          saturationDetector: {pluginRef: work-seconds-detector}
          usageLimitPolicyPluginRef: ceilings
          defaultPriorityBand: {fairnessPolicyRef: fairness}
    """,
    "tenants with quotas": """
        plugins:
        - {type: queue-scorer}
        - {type: tenants, parameters: {tenants: [{name: gold, fairnessIds: [f1]}]}}
        - type: tenant-quotas
          parameters:
            quotas: [{tenant: gold, total: {concurrentRequests: 2, tokensPerMinute: 200}}]
    """,
    "everything learned": """
        plugins:
        - {type: session-affinity-filter, parameters: {strategy: session_id}}
        - {type: approx-prefix-cache-producer}
        - {type: prefix-cache-scorer}
        - {type: no-hit-lru-scorer}
        - {type: balance-scorer}
        - {type: session-affinity-scorer}
        - {type: work-seconds-scorer}
        - {type: cost-aware-spill}
        - {type: weighted-random-picker}
    """,
    "clusters behind a hub": """
        plugins:
        - {type: multicluster-metrics-data-source}
        - {type: multicluster-metrics-extractor}
        - {type: multicluster-kv-cache-utilization-scorer}
        - {type: multicluster-queue-scorer}
        - {type: multicluster-approx-prefix-cache-producer}
        - {type: multicluster-prefix-cache-scorer}
        dataLayer:
          sources:
          - {pluginRef: multicluster-metrics-data-source, extractors: [{pluginRef: multicluster-metrics-extractor}]}
    """,
    "blocks in lower tiers": """
        plugins:
        - {type: precise-prefix-cache-producer}
        - {type: kv-transfer-cost}
        - type: work-seconds-scorer
          parameters: {requestsBehind: 1, prefixMatchInfoProducerName: precise-prefix-cache-producer}
    """,
    **{path.stem: path.read_text() for path in sorted(SAMPLES.glob("*.yaml"))},
}
BODIES = [
    b'{"model":"m","prompt":"' + b"hello world, " * 60 + b'"}',
    b'{"model":"m","prompt":"' + b"hello world, " * 40 + b'and now another end","stream":true}',
    b'{"model":"n","messages":[{"role":"user","content":"hi"}],"max_tokens":50}',
]
HEADERS = [
    [],
    [("x-gateway-inference-fairness-id", "f1")],
    [("x-gateway-inference-objective", "batch"), ("x-zone", "b")],
    [("x-session-id", "s1"), ("x-zone", "nowhere")],
]
POLICIES = PoolPolicies(priorities={"batch": -1, "gold": 5})
