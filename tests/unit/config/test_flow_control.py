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


def test_zero_is_the_default_limit_of_one_priority_no_limit_for_all_and_no_end_of_waiting(build):
    flow = build(f"""\
{ON}flowControl:
  maxRequests: 0
  maxBytes: 0
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 0s
  priorityBands:
  - {{priority: 2, defaultRequestTTL: 0s}}
  - {{priority: 1, defaultRequestTTL: 5s, maxRequests: 0, maxBytes: 0}}
""").pipeline.flow_control
    assert (flow.limits, flow.of(1).limits) == (Limits(0, 0), Limits(5000, 10**9))
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
    assert "saturationDetector: has no effect besides flowControl.saturationDetector" in str(both.warnings[-1])


def test_policy_that_nothing_names_is_warned_of(warned):
    policies = "plugins: [{type: edf-ordering-policy}, {type: round-robin-fairness-policy, name: turns}]\n"
    (warning,) = warned(f"{ON}{policies}flowControl: {{defaultPriorityBand: {{fairnessPolicyRef: turns}}}}")
    assert warning == (
        "c.yaml:4:11: plugins[0]: plugin 'edf-ordering-policy' (type edf-ordering-policy) has no effect: "
        "flowControl does not name it"
    )


def test_limit_of_a_priority_above_that_for_all_is_warned_of_only_where_the_file_sets_it(warned):
    bands = "[{priority: 1, maxRequests: 500, maxBytes: 1k}, {priority: 0}]"
    (warning,) = warned(f"{ON}flowControl: {{maxRequests: 100, maxBytes: 1M, priorityBands: {bands}}}")
    assert warning == (
        "c.yaml:4:77: flowControl.priorityBands[0].maxRequests: is 500, but never reached: "
        "flowControl.maxRequests is 100"
    )


def test_detector_of_metrics_that_nothing_collects_is_warned_of(warned):
    text = "plugins: [{type: active-request-scorer}, {type: concurrency-detector}]\n"
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]\n"
    flow = "dataLayer: {injectDefaults: false}\nflowControl: {saturationDetector: {pluginRef: X}}"
    blind = ON + text + profile + flow
    warnings = warned(blind.replace("concurrency-", "utilization-").replace("X", "utilization-detector"))
    assert (
        "c.yaml:7:1: flowControl: detector 'utilization-detector' only sees this picker's own requests, because "
        "no data source of this configuration collects metrics: name a concurrency-detector, or add a data source"
    ) in warnings
    assert warned(blind.replace("X", "concurrency-detector")) == []


@pytest.mark.parametrize(
    ("ceilings", "warning"),
    [
        (
            lambda priorities: [1.0 if priority >= 0 else 0.0 for priority in priorities],
            "admit no request of priority -5, even to an idle endpoint: they wait until they are refused",
        ),
        (
            lambda priorities: [1.0] * (1 if len(priorities) == 2 else len(priorities)),
            "failed on the priorities of this file: 1 ceilings for 2 priorities",
        ),
    ],
    ids=["closed", "short"],
)
def test_ceiling_that_lets_nothing_through_is_warned_of(warned, ceilings, warning):
    class Mine(UsageLimitPolicy):
        plugin_type = "mine"

        def ceilings(self, priorities, saturation):
            return ceilings(priorities)

    registry = Registry()
    registry.register(Mine)
    flow = "flowControl: {usageLimitPolicyPluginRef: mine, priorityBands: [{priority: -5}]}"
    found = warned(f"{ON}plugins: [{{type: mine}}]\n{flow}", registry=registry)
    assert found == [f"c.yaml:5:1: flowControl: usage limits 'mine' {warning}"]


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


@pytest.mark.parametrize(
    ("flow", "problem"),
    [
        ("maxBytes: -1", "maxBytes: '-1' is not a quantity"),
        ("maxBytes: ten", "maxBytes: 'ten' is not a quantity"),
        ("defaultRequestTTL: 60", "defaultRequestTTL: write a duration such as 60s"),
        ("defaultRequestTTL: -1s", "defaultRequestTTL: '-1s' is not a duration"),
        ("priorityBands: [{priority: 1, maxRequests: '-5'}]", "priorityBands[0].maxRequests: '-5' is not a quantity"),
        ("priorityBands: [{maxRequests: 5}]", "priorityBands[0].priority: is missing"),
        ("saturationDetector: {pluginRef: nope}", "saturationDetector.pluginRef: no plugin is named 'nope'"),
        ("defaultPriorityBand: {orderingPolicyRef: q}", "defaultPriorityBand.orderingPolicyRef: no plugin is na"),
        ("priorityBands: [{priority: 1, fairnessPolicyRef: q}]", "priorityBands[0].fairnessPolicyRef: no plugin is"),
    ],
)
def test_mistake_in_flow_control_is_named_once_with_its_place(refused, flow, problem):
    (found,) = refused(f"{ON}flowControl: {{{flow}}}")
    assert f": flowControl.{problem}" in str(found)


@pytest.mark.parametrize(
    ("reference", "role"),
    [
        ("priorityBands: [{priority: 1, fairnessPolicyRef: edf}]", "FairnessPolicy"),
        ("defaultPriorityBand: {orderingPolicyRef: turns}", "OrderingPolicy"),
        ("saturationDetector: {pluginRef: edf}", "SaturationDetector"),
    ],
)
def test_policy_of_another_role_is_refused(refused, reference, role):
    plugins = "[{type: edf-ordering-policy, name: edf}, {type: round-robin-fairness-policy, name: turns}]"
    (found,) = refused(f"{ON}flowControl: {{{reference}}}\nplugins: {plugins}")
    assert str(found).startswith("c.yaml:4:")
    assert str(found).endswith(f" does not implement {role}")


def test_name_of_a_default_policy_that_is_taken_by_another_plugin_is_refused(refused):
    problems = refused(f"{ON}plugins: [{{type: queue-scorer, name: fcfs-ordering-policy}}]")
    (message,) = {problem.message for problem in problems}
    assert message == "plugin 'fcfs-ordering-policy' (type queue-scorer) does not implement OrderingPolicy"


def test_policy_that_is_a_type_without_an_entry_or_is_not_supported_is_refused(refused):
    (found,) = refused(f"{ON}flowControl: {{usageLimitPolicyPluginRef: static-usage-limit}}")
    assert str(found).endswith(
        "usageLimitPolicyPluginRef: no plugin is named 'static-usage-limit'; did you mean the type "
        "'static-usage-limit-policy'? Then add `- type: static-usage-limit-policy` under plugins"
    )
    plugins = "plugins: [{type: disagg-headers-handler}]\n"
    band = "flowControl: {defaultNegativePriorityBand: {fairnessPolicyRef: disagg-headers-handler}}"
    (found,) = refused(ON + plugins + band)
    assert str(found).endswith("type 'disagg-headers-handler' is known but not supported yet: it cannot be used here")


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
