# SPDX-License-Identifier: Apache-2.0
"""`flowControl` of a file: what it comes to, its mistakes, and its parts without effect."""

from math import inf

import pytest

from epp.admission.flow_control.settings import Limits
from epp.framework.flow_control import UsageLimitPolicy
from epp.framework.registry import Registry

ON = "featureGates: [flowControl]\n"


def test_gate_alone_lets_requests_wait_as_llm_d_router_does_by_default(build):
    assembly = build(ON)
    flow = assembly.pipeline.flow_control
    assert (flow.detector.name, flow.usage_limits.name) == ("utilization-detector", "static-usage-limit-policy")
    assert (flow.limits, flow.no_endpoint_ttl_seconds) == (Limits(0, 0), 60.0)
    for priority in (7, 0, -7):
        band = flow.of(priority)
        assert (band.limits, band.ttl_seconds) == (Limits(5000, 10**9), 60.0)
        assert (band.fairness.name, band.ordering.name) == ("global-strict-fairness-policy", "fcfs-ordering-policy")
    assert assembly.warnings == ()


def test_zero_is_the_default_for_one_priority_and_no_limit_for_all(build):
    flow = build(f"""\
{ON}flowControl:
  maxRequests: 0
  maxBytes: 0
  priorityBands: [{{priority: 1, maxRequests: 0, maxBytes: 0}}]
""").pipeline.flow_control
    assert flow.limits == Limits(0, 0)
    assert flow.of(1).limits == Limits(5000, 10**9)


def test_ttl_of_a_priority_counts_before_that_for_all_and_zero_is_as_long_as_it_takes(build):
    flow = build(f"""\
{ON}flowControl:
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 0s
  priorityBands: [{{priority: 2, defaultRequestTTL: 0s}}, {{priority: 1, defaultRequestTTL: 5s}}]
""").pipeline.flow_control
    assert [flow.of(priority).ttl_seconds for priority in (2, 1, 0)] == [inf, 5.0, 30.0]
    assert flow.no_endpoint_ttl_seconds == inf


def test_negative_priorities_are_as_all_others_unless_the_file_says_so(build):
    one = build(f"{ON}flowControl: {{defaultPriorityBand: {{maxRequests: 7}}}}").pipeline.flow_control
    assert one.of(-1) is one.of(0)
    both = "{defaultPriorityBand: {maxRequests: 7}, defaultNegativePriorityBand: {maxRequests: 3}}"
    two = build(f"{ON}flowControl: {both}").pipeline.flow_control
    assert (two.of(0).limits.requests, two.of(-1).limits.requests) == (7, 3)


def test_detector_of_the_deprecated_place_counts_where_no_other_is_named(build):
    text = """\
plugins: [{type: concurrency-detector}, {type: utilization-detector}]
schedulingProfiles: [{name: default, plugins: []}]
saturationDetector: {pluginRef: concurrency-detector}
"""
    assembly = build(ON + text)
    assert assembly.pipeline.flow_control.detector.name == "concurrency-detector"
    assert [str(warning) for warning in assembly.warnings] == [
        (
            "c.yaml:4:41: plugins[1]: plugin 'utilization-detector' (type utilization-detector) has no effect: "
            "flowControl does not name it, and no profile names it as a filter"
        ),
        "c.yaml:6:1: saturationDetector: is deprecated: write it into flowControl",
    ]
    both = build(f"{ON}{text}flowControl: {{saturationDetector: {{pluginRef: utilization-detector}}}}")
    assert both.pipeline.flow_control.detector.name == "utilization-detector"
    assert "saturationDetector: has no effect beside flowControl.saturationDetector" in str(both.warnings[-1])


def test_policy_that_nothing_names_is_warned_of(warned):
    policies = "plugins: [{type: edf-ordering-policy}, {type: round-robin-fairness-policy, name: turns}]\n"
    assert warned(f"{ON}{policies}flowControl: {{defaultPriorityBand: {{fairnessPolicyRef: turns}}}}") == [
        (
            "c.yaml:4:11: plugins[0]: plugin 'edf-ordering-policy' (type edf-ordering-policy) has no effect: "
            "flowControl does not name it"
        )
    ]


def test_limit_of_a_priority_above_that_for_all_is_warned_of_only_where_the_file_sets_it(warned):
    bands = "[{priority: 1, maxRequests: 500, maxBytes: 1k}, {priority: 0}]"
    assert warned(f"{ON}flowControl: {{maxRequests: 100, maxBytes: 1M, priorityBands: {bands}}}") == [
        (
            "c.yaml:4:77: flowControl.priorityBands[0].maxRequests: is 500, and never reached: flowControl.maxRequests "
            "is 100"
        )
    ]


def test_detector_of_metrics_that_nothing_collects_is_warned_of(warned):
    text = "plugins: [{type: active-request-scorer}, {type: concurrency-detector}]\n"
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]\n"
    flow = "dataLayer: {injectDefaults: false}\nflowControl: {saturationDetector: {pluginRef: X}}"
    blind = ON + text + profile + flow
    warnings = warned(blind.replace("concurrency-", "utilization-").replace("X", "utilization-detector"))
    assert (
        "c.yaml:7:1: flowControl: detector 'utilization-detector' knows only this picker's own requests, because "
        "no data source of this configuration collects metrics: name a concurrency-detector, or add a data source"
    ) in warnings
    assert warned(blind.replace("X", "concurrency-detector")) == []


class Closed(UsageLimitPolicy):
    """Lets priority 0 and more through."""

    plugin_type = "closed"

    def ceilings(self, priorities, saturation):
        return [1.0 if priority >= 0 else 0.0 for priority in priorities]


class Short(UsageLimitPolicy):
    """Has no ceiling for the lower one of two priorities."""

    plugin_type = "short"

    def ceilings(self, priorities, saturation):
        return [1.0] * (1 if len(priorities) == 2 else len(priorities))


@pytest.mark.parametrize(
    ("policy", "warning"),
    [
        (
            Closed,
            (
                "usage limits 'closed' let no request of priority -5 through, even to an idle endpoint: they wait "
                "until they are refused"
            ),
        ),
        (Short, "usage limits 'short' failed on the priorities of this file: 1 ceilings for 2 priorities"),
    ],
)
def test_ceiling_that_lets_nothing_through_is_warned_of(warned, policy, warning):
    registry = Registry()
    registry.register(policy)
    kind = policy.plugin_type
    flow = f"flowControl: {{usageLimitPolicyPluginRef: {kind}, priorityBands: [{{priority: -5}}]}}"
    text = f"plugins: [{{type: {kind}}}]\n{flow}"
    assert warned(ON + text, registry=registry) == [f"c.yaml:5:1: flowControl: {warning}"]


def test_mistake_of_the_default_band_is_told_once(refused):
    problems = refused(f"{ON}flowControl: {{defaultPriorityBand: {{orderingPolicyRef: nope}}}}")
    assert [problem.path for problem in problems] == [("flowControl", "defaultPriorityBand", "orderingPolicyRef")]


def test_all_mistakes_are_told_at_once(refused):
    problems = refused(f"""\
{ON}flowControl:
  saturationDetector: {{pluginRef: one}}
  usageLimitPolicyPluginRef: two
  priorityBands:
  - {{priority: 1, fairnessPolicyRef: three}}
  - {{priority: 1, orderingPolicyRef: four}}
""")
    assert [problem.position.line for problem in problems] == [5, 6, 8, 8, 9, 9]


def test_name_of_a_default_policy_that_is_taken_by_another_plugin_is_refused(refused):
    text = "plugins: [{type: queue-scorer, name: fcfs-ordering-policy}]"
    problems = refused(ON + text)
    assert {problem.message for problem in problems} == {
        "plugin 'fcfs-ordering-policy' (type queue-scorer) is no OrderingPolicy"
    }


@pytest.mark.parametrize(
    ("flow", "problem"),
    [
        ("maxBytes: -1", "maxBytes: '-1' is not a quantity"),
        ("maxBytes: ten", "maxBytes: 'ten' is not a quantity"),
        ("defaultRequestTTL: 60", "defaultRequestTTL: write a duration such as 60s"),
        ("defaultRequestTTL: -1s", "defaultRequestTTL: '-1s' is not a duration"),
        ("priorityBands: [{priority: 1, maxRequests: '-5'}]", "priorityBands[0].maxRequests: '-5' is not a quantity"),
        ("priorityBands: [{maxRequests: 5}]", "priorityBands[0].priority: is missing"),
        (
            "priorityBands: [{priority: 1, fairnessPolicyRef: nope}]",
            "priorityBands[0].fairnessPolicyRef: no plugin is named 'nope'",
        ),
        (
            "priorityBands: [{priority: 1, fairnessPolicyRef: edf-ordering-policy}]",
            (
                "priorityBands[0].fairnessPolicyRef: plugin 'edf-ordering-policy' (type edf-ordering-policy) is no "
                "FairnessPolicy"
            ),
        ),
        (
            "defaultPriorityBand: {orderingPolicyRef: queue-scorer}",
            "defaultPriorityBand.orderingPolicyRef: plugin 'queue-scorer' (type queue-scorer) is no OrderingPolicy",
        ),
        (
            "defaultNegativePriorityBand: {fairnessPolicyRef: disagg-headers-handler}",
            (
                "defaultNegativePriorityBand.fairnessPolicyRef: plugin type 'disagg-headers-handler' is known, not "
                "supported yet: it cannot be used here"
            ),
        ),
        (
            "usageLimitPolicyPluginRef: static-usage-limit",
            (
                "usageLimitPolicyPluginRef: no plugin is named 'static-usage-limit'; did you mean the type "
                "'static-usage-limit-policy'? Then add `- type: static-usage-limit-policy` under plugins"
            ),
        ),
        ("saturationDetector: {pluginRef: nope}", "saturationDetector.pluginRef: no plugin is named 'nope'"),
        (
            "saturationDetector: {pluginRef: mine}",
            ("saturationDetector.pluginRef: plugin 'mine' (type round-robin-fairness-policy) is no SaturationDetector"),
        ),
    ],
)
def test_mistake_in_flow_control_is_named_with_its_place(refused, flow, problem):
    text = f"""\
featureGates: [flowControl]
flowControl: {{{flow}}}
plugins:
- {{type: queue-scorer}}
- {{type: disagg-headers-handler}}
- {{type: edf-ordering-policy}}
- {{type: round-robin-fairness-policy, name: mine}}
"""
    (found,) = refused(text)
    assert f": flowControl.{problem}" in str(found)


def test_two_bands_of_one_priority_are_both_named(refused):
    problems = refused("flowControl: {priorityBands: [{priority: 1}, {priority: 2}, {priority: 1}]}")
    assert [(p.path, p.message) for p in problems] == [
        (("flowControl", "priorityBands", index, "priority"), "two bands have priority 1") for index in (0, 2)
    ]


def test_policies_may_be_referred_to_by_name_declared_or_implied(build):
    flow = build("""\
featureGates: [flowControl]
plugins: [{type: round-robin-fairness-policy, name: turns}]
flowControl:
  usageLimitPolicyPluginRef: static-usage-limit-policy
  saturationDetector: {pluginRef: utilization-detector}
  priorityBands:
  - {priority: 1, fairnessPolicyRef: turns, orderingPolicyRef: fcfs-ordering-policy}
""").pipeline.flow_control
    assert (flow.usage_limits.name, flow.detector.name) == ("static-usage-limit-policy", "utilization-detector")
    assert (flow.of(1).fairness.name, flow.of(1).ordering.name) == ("turns", "fcfs-ordering-policy")
