# SPDX-License-Identifier: Apache-2.0
"""Keys of profiles and of dataLayer for requests without candidates, and for endpoints that did not report for long."""

from math import inf

import pytest

from epp.config import Builder, assemble, load_text
from epp.config.document import InvalidConfigError
from epp.framework import ManualClock, Request
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.registry import Registry
from epp.framework.result import DropCause
from epp.framework.testing import candidates


def assembled(
    profile: str, layer: str = "{}", plugins: str = "[{type: queue-scorer}, {type: kv-cache-utilization-scorer}]"
):
    text = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: {plugins}
schedulingProfiles: [{profile}]
dataLayer: {layer}
"""
    return assemble(load_text(text, "config"), Builder(Registry(), ManualClock()))


def scored(profile: str, layer: str = "{}", **options) -> list[float]:
    """Return the totals of two endpoints: the first is idle, last seen 60 s ago; the second has 4 waiting, seen now."""
    pool = candidates(waiting=[0, 4], metrics_at=[40, 100])
    scheduler = assembled(profile, layer, **options).pipeline.scheduler
    result = scheduler.schedule(Request("r"), Candidates(pool.snapshot, pool.slots, now=100.0))
    return [round(total, 3) for total in result.primary.totals.tolist()]


QUEUE = "name: p, plugins: [{pluginRef: queue-scorer}]"
ON_STALE = "{name: p, plugins: [{pluginRef: queue-scorer, onStale: %s}]}"


def test_gie_6_the_load_of_a_stale_endpoint_is_unknown_unless_its_last_report_counts_or_it_is_left_out():
    assert scored(f"{{{QUEUE}}}") == [1.0, 0.0]
    # No own requests are in flight at either: unknown load counts as the least per request of those that report.
    assert scored(f"{{{QUEUE}}}", "{staleAfter: 30s}") == [1.0, 1.0]
    assert scored(f"{{{QUEUE}}}", "{staleAfter: 61s}") == [1.0, 0.0]
    assert scored(f"{{{QUEUE}}}", "{staleAfter: 30s, onStale: Ignore}") == [1.0, 0.0]
    assert scored(f"{{{QUEUE}}}", "{staleAfter: 30s, onStale: Drop}") == [1.0]


def test_gie_6_a_plugin_has_its_own_age_and_its_own_rule():
    own = "{name: p, plugins: [{pluginRef: queue-scorer, staleAfter: 30s}]}"
    assert scored(own) == [1.0, 1.0]
    assert scored(ON_STALE % "Ignore", "{staleAfter: 30s}") == [1.0, 0.0]
    utilization = "[{type: utilization-filter, parameters: {conditions: [{metric: waiting-queue, maxValue: 9}]}}]"
    dropping = "{name: p, plugins: [{pluginRef: utilization-filter, staleAfter: 30s, onStale: Drop}]}"
    assert scored(dropping, plugins=utilization) == [0.0]


@pytest.mark.parametrize(
    ("profile", "layer", "problem"),
    [
        (f"{{{QUEUE}}}", "{staleAfter: 0s}", "write a duration above 0, such as 5s"),
        (f"{{{QUEUE}}}", "{staleAfter: 5}", "write a duration such as 60s or 1m30s"),
        (f"{{{QUEUE}}}", "{staleAfter: 5s, onStale: Forget}", "'Ignore', 'Neutral' or 'Drop'"),
        (ON_STALE % "Neutral", "{}", "set staleAfter here, or in dataLayer"),
        (ON_STALE % "Drop", "{staleAfter: 5s}", "'queue-scorer' drops no endpoints; use Neutral here"),
        (f"{{{QUEUE}, constraintStatus: 418}}", "{}", "400, 404, 429 or 503"),
        (f"{{{QUEUE}, failOpen: [busy]}}", "{}", "'constraint', 'availability', 'stale', 'saturation' or 'unstated'"),
    ],
)
def test_gie_6_and_gie_10_values_without_sense_are_refused(profile, layer, problem):
    with pytest.raises(InvalidConfigError) as refused:
        assembled(profile, layer)
    assert problem in str(refused.value)


def test_gie_6_a_rule_without_an_age_is_warned_of():
    warnings = assembled(f"{{{QUEUE}}}", "{onStale: Drop}").warnings
    assert "onStale: has no effect: set staleAfter as well" in "\n".join(map(str, warnings))


@pytest.mark.parametrize(
    ("profile", "layer", "seconds"),
    [
        (QUEUE, "{}", inf),
        (QUEUE, "{staleAfter: 30s}", 30.0),
        (QUEUE, "{staleAfter: 30s, onStale: Drop}", 30.0),
        (QUEUE, "{staleAfter: 30s, onStale: Ignore}", inf),
        ("name: p, plugins: [{pluginRef: queue-scorer, staleAfter: 2s}]", "{staleAfter: 30s}", 2.0),
    ],
)
def test_gie_6_endpoints_are_polled_often_enough_for_the_shortest_age(profile, layer, seconds):
    found = assembled(f"{{{profile}}}", layer).pipeline.scheduler.profiles["p"]
    assert found.trusted_seconds == seconds


GOLD = "[{type: label-selector-filter, parameters: {matchLabels: {tier: gold}}}, {type: queue-scorer}]"
FILTERED = "name: p, plugins: [{pluginRef: label-selector-filter}, {pluginRef: queue-scorer}]"


def test_gie_10_status_of_unmet_constraints_and_failing_open_are_keys_of_a_profile():
    with pytest.raises(RequestError) as refused:
        scored(f"{{{FILTERED}, constraintStatus: 404}}", plugins=GOLD)
    assert (refused.value.status, refused.value.reason) == (404, "rejected-constraint")
    assert scored(f"{{{FILTERED}, failOpen: true}}", plugins=GOLD) == [1.0, 0.0]
    assert scored(f"{{{FILTERED}, failOpen: [constraint]}}", plugins=GOLD) == [1.0, 0.0]
    with pytest.raises(RequestError, match="a retry does not help"):
        scored(f"{{{FILTERED}, failOpen: [saturation, stale]}}", plugins=GOLD)


def test_gie_10_the_warning_of_a_filter_that_may_drop_all_knows_status_and_failing_open():
    def warnings(more: str) -> str:
        return "\n".join(map(str, assembled(f"{{{FILTERED}{more}}}", plugins=GOLD).warnings))

    assert "refused with 429: set fallbackOnEmpty" in warnings("")
    assert "refused with 404: set fallbackOnEmpty" in warnings(", constraintStatus: 404")
    assert "fallbackOnEmpty" not in warnings(", failOpen: true")
    assert (
        set(DropCause)
        == assembled(f"{{{FILTERED}, failOpen: true}}", plugins=GOLD).pipeline.scheduler.profiles["p"].fail_open
    )
