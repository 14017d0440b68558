# SPDX-License-Identifier: Apache-2.0
"""Which requests under way may end for others, as a file says it."""

from epp.admission.flow_control.in_flight_eviction import OWN_GRACE_SECONDS, REPORT_GRACE_SECONDS
from epp.plugins.flow_policies import PriorityThenTimeEviction, SheddableEviction

GATE = "featureGates: [flowControl]\n"


ON = f"{GATE}flowControl: {{enableEviction: true}}\n"


def test_usual_policies_are_added_where_eviction_is_on(build):
    assert build(GATE).pipeline.flow_control.eviction is None
    found = build(ON, experimental=True).pipeline.flow_control.eviction
    assert isinstance(found.filter, SheddableEviction)
    assert isinstance(found.order, PriorityThenTimeEviction)
    assert not found.filter.after_first_token
    assert found.grace_seconds == REPORT_GRACE_SECONDS


def test_declared_policy_counts_and_own_requests_need_little_grace(build):
    text = """
plugins:
- {type: sheddable-eviction-filter, name: mine, parameters: {afterFirstToken: true}}
- {type: concurrency-detector}
flowControl: {enableEviction: true, saturationDetector: {pluginRef: concurrency-detector}}
"""
    found = build(GATE + text, experimental=True).pipeline.flow_control.eviction
    assert found.filter.name == "mine"
    assert found.filter.after_first_token
    assert found.grace_seconds == OWN_GRACE_SECONDS


def test_two_filters_are_refused(refused):
    text = "plugins: [{type: sheddable-eviction-filter, name: one}, {type: sheddable-eviction-filter, name: two}]\n"
    (problem,) = refused(ON + text, experimental=True)
    assert problem.message == "needs one EvictionFilter, not 'one', 'two'"


def test_policy_without_eviction_is_warned_of(warned):
    text = "plugins: [{type: sheddable-eviction-filter}]\n"
    (warning,) = [each for each in warned(GATE + text, experimental=True) if "enableEviction" in each]
    assert "plugin 'sheddable-eviction-filter' has no effect: flowControl.enableEviction is off" in warning


def test_experimental_policies_are_not_taken_by_themselves(refused):
    problems = refused(ON)
    assert [problem.message for problem in problems] == [
        "type sheddable-eviction-filter is experimental",
        "type priority-then-time-eviction-order-policy is experimental",
    ]
