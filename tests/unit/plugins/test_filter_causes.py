# SPDX-License-Identifier: Apache-2.0
"""Causes for which filters drop endpoints."""

from importlib.metadata import entry_points

from epp.framework import DropCause, Filter

CAUSES = {
    DropCause.CONSTRAINT: {
        "accelerator-filter",
        "by-label",
        "by-label-selector",
        "context-length-aware",
        "gpu-topology-filter",
        "label-selector-filter",
        "mig-profile-filter",
        "node-affinity-filter",
        "placement-template-filter",
        "preference-order-scorer",
        "same-node-filter",
    },
    DropCause.AVAILABILITY: {"accelerator-availability-filter", "cluster-score", "placement-filter", "taint-filter"},
    DropCause.SATURATION: {
        "concurrency-detector",
        "node-concurrency-filter",
        "utilization-detector",
        "utilization-filter",
    },
}
UNSTATED = {
    "cost-aware-spill",
    "decode-filter",
    "encode-filter",
    "endpoint-attribute-filter",
    "header-based-testing-filter",
    "multicluster-session-affinity-filter",
    "prefill-filter",
    "prefix-cache-affinity-filter",
    "session-affinity-filter",
    "slo-fit-filter",
    "slo-headroom-tier-filter",
    "topology-affinity-filter",
}
"""Filters that always keep an endpoint, filters whose parameters decide, and filters of llm-d-router with its
refusal."""


def test_gie_10_every_filter_says_why_it_drops_endpoints():
    classes = [(point.name, point.load()) for point in entry_points(group="epp.plugins")]
    causes = {name: cls.drops for name, cls in classes if issubclass(cls, Filter)}
    expected = {name: cause for cause, names in CAUSES.items() for name in names}
    assert causes == expected | dict.fromkeys(UNSTATED, DropCause.UNSTATED)
