# SPDX-License-Identifier: Apache-2.0
"""Files that llm-d's own picker accepts: what they come to here."""

import json

import pytest

from epp.framework import Endpoint, Headers, ManualClock, Producer, Request, RequestBody, ResponseReporter
from epp.framework.testing import candidates
from epp.routing.datastore import Datastore
from epp.routing.director import Director, Runtime

CHART_DEFAULT = """\
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: metrics-data-source, parameters: {scheme: http, path: /metrics, insecureSkipVerify: true}}
- {type: core-metrics-extractor, parameters: {defaultEngine: sglang}}
- {type: openai-parser}
- {type: anthropic-parser}
dataLayer:
  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]
requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: anthropic-parser}]}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""

CHART_PAYLOAD_AGNOSTIC = """\
plugins: [{type: passthrough-parser}, {type: active-request-scorer}, {type: session-affinity-scorer}]
requestHandler: {parsers: [{pluginRef: passthrough-parser}]}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: active-request-scorer}, {pluginRef: session-affinity-scorer, weight: 5}]}
"""

STICKY_UNTIL_BUSY = """\
plugins:
- {type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.5}}
- {type: token-load-scorer, parameters: {queueThresholdTokens: 0}}
- {type: utilization-detector, parameters: {queueDepthThreshold: 5, headroom: 0.2}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: utilization-detector}
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
"""

NEAR_THE_PEER = """\
plugins:
- {type: topology-extractor, parameters: {hostname: node, rack: example.com/rack, zone: "", region: region}}
- {type: endpoint-notification-source}
- {type: topology-affinity-filter, parameters: {minAffinity: rack}}
- {type: load-aware-scorer, parameters: {threshold: 0}}
dataLayer:
  sources: [{pluginRef: endpoint-notification-source, extractors: [{pluginRef: topology-extractor}]}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: topology-affinity-filter}, {pluginRef: load-aware-scorer}]}
"""

SESSIONS = """\
plugins:
- {type: session-id-producer, name: by-cookie, parameters: {cookieName: sid}}
- type: session-affinity-filter
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: SessionIDDataKey, producer: by-cookie}], evictionTtlSeconds: 0}
- {type: no-hit-lru-scorer, parameters: {prefixPluginType: prefix-cache-scorer, prefixPluginName: p, lruSize: 0}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: session-affinity-filter}, {pluginRef: no-hit-lru-scorer}]}
"""


@pytest.mark.parametrize("text", [CHART_DEFAULT, CHART_PAYLOAD_AGNOSTIC, STICKY_UNTIL_BUSY, NEAR_THE_PEER])
def test_file_loads_and_routes_to_the_least_loaded(build, text):
    assembly = build(text, experimental=True)
    now = ManualClock().now()
    pool = candidates(
        waiting=[9, 0, 9], running=[9, 1, 9], kv_usage=[0.9, 0.1, 0.9], in_flight=[3, 0, 3], metrics_at=[now] * 3
    )
    request = Request("r", RequestBody(model="m", prompt=b"x" * 160, prompt_tokens=40))
    for producer in assembly.pipeline.of(Producer):
        producer.produce(request, pool)
    assert assembly.pipeline.scheduler.schedule(request, pool).targets[0].name == "e1"


def director_of(assembly):
    clock = ManualClock()
    store = Datastore(clock)
    store.replace([Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("abcd", 1)])
    return Director(Runtime(store, clock), assembly.pipeline)


def completion(prompt):
    return json.dumps({"model": "m", "prompt": prompt}).encode()


def route(director, prompt, *headers):
    return director.route(Headers([(":path", "/v1/completions"), *headers]), completion(prompt), None).result


def test_session_of_a_cookie_stays_where_it_began(build):
    director = director_of(build(SESSIONS, experimental=True))
    first = {name: route(director, name, ("cookie", f"sid={name}")).targets for name in "stuv"}
    assert len(set(first.values())) > 1
    for name, targets in first.items():
        assert route(director, f"{name} again", ("cookie", f"sid={name}")).targets == targets


@pytest.mark.parametrize("prompt", ["forty tokens of four letters each, twice" * 4, ["one", "two"], [1, 2, 3]])
def test_short_prompt_that_is_sent_twice_scores_1_where_it_went(build, prompt):
    director = director_of(build(CHART_DEFAULT))
    (target,) = route(director, prompt).targets
    again = route(director, prompt)
    assert again.targets == (target,)
    (trace,) = [trace for trace in again.primary.scores if trace.plugin == "prefix-cache-scorer"]
    expected = [1.0 if endpoint == target else 0.0 for endpoint in again.primary.candidates.endpoints]
    assert trace.scores.tolist() == expected


def test_prompt_of_a_list_is_found_again_in_another_list(build):
    director = director_of(build(CHART_DEFAULT))
    (target,) = route(director, ["one", "two", "three"]).targets
    again = route(director, ["four", "three", "two", "one"])
    (trace,) = [trace for trace in again.primary.scores if trace.plugin == "prefix-cache-scorer"]
    assert max(trace.scores) == 0.75
    assert again.targets == (target,)


def in_a_profile(plugins, refs):
    return f"plugins: [{plugins}]\nschedulingProfiles:\n- name: p\n  plugins:\n{refs}"


WITHOUT_PART = [
    *("openai-parser", "single-profile-handler", "metrics-data-source", "fcfs-ordering-policy"),
    *("disagg-headers-handler", "always-disagg-pd-decider", "agent-identity", "probabilistic-admitter"),
]


@pytest.mark.parametrize("kind", WITHOUT_PART)
def test_profile_may_name_what_has_no_part_in_it(build, kind):
    assembly = build(in_a_profile(f"{{type: queue-scorer}}, {{type: {kind}}}", f"  - pluginRef: {kind}\n"))
    (warning,) = [str(warning) for warning in assembly.warnings if "is not a filter" in warning.message]
    assert warning == (
        f"c.yaml:7:5: schedulingProfiles[0].plugins[0]: plugin '{kind}' (type {kind}) is not a filter, scorer or "
        "picker: it has no effect in a profile"
    )


def test_producer_in_a_profile_runs_for_every_request_as_elsewhere(warned):
    kind = "approx-prefix-cache-producer"
    scorers = "  - pluginRef: prefix-cache-scorer\n  - pluginRef: queue-scorer\n"
    plugins = f"{{type: prefix-cache-scorer}}, {{type: queue-scorer}}, {{type: {kind}}}"
    assert warned(in_a_profile(plugins, f"  - pluginRef: {kind}\n{scorers}")) == []


def test_reporter_in_a_profile_still_reports(build):
    pytest.importorskip("cel_expr_python")
    reporter = "{type: request-attribute-reporter, parameters: {attributes: [{key: {name: cost}, expression: '1.0'}]}}"
    assembly = build(in_a_profile(f"{{type: queue-scorer}}, {reporter}", "  - pluginRef: request-attribute-reporter\n"))
    assert [plugin.name for plugin in assembly.pipeline.of(ResponseReporter)] == ["request-attribute-reporter"]
    assert any("has no effect in a profile" in warning.message for warning in assembly.warnings)


def test_weight_of_what_is_no_scorer_is_passed_over(warned):
    refs = "  - {pluginRef: decode-filter, weight: 1}\n  - {pluginRef: random-picker, weight: 2}\n"
    text = in_a_profile("{type: decode-filter}, {type: random-picker}", refs)
    assert [line for line in warned(text) if "not a scorer" in line] == [
        "c.yaml:7:32: schedulingProfiles[0].plugins[0].weight: has no effect: 'decode-filter' is not a scorer",
        "c.yaml:8:32: schedulingProfiles[0].plugins[1].weight: has no effect: 'random-picker' is not a scorer",
    ]


def test_detector_is_a_filter_where_a_profile_names_it_and_otherwise_has_no_effect(build):
    plugins = "{type: concurrency-detector}, {type: utilization-detector, name: busy}, {type: queue-scorer}"
    assembly = build(in_a_profile(plugins, "  - {pluginRef: busy}\n  - {pluginRef: queue-scorer}\n"))
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    assert [member.filter.name for member in profile.filters] == ["busy"]
    assert assembly.pipeline.shedding is None
    (idle,) = [str(warning) for warning in assembly.warnings if "concurrency-detector" in warning.message]
    assert idle == (
        "c.yaml:3:11: plugins[0]: plugin 'concurrency-detector' (type concurrency-detector) has no effect: feature "
        "gate flowControl is off, and no profile names it as a filter"
    )


def test_detector_of_the_flow_control_may_be_a_filter_too(build):
    text = in_a_profile("{type: concurrency-detector, name: busy}", "  - {pluginRef: busy}\n")
    assembly = build(text + "flowControl: {saturationDetector: {pluginRef: busy}}\n")
    assert not [warning for warning in assembly.warnings if "concurrency-detector" in warning.message]


def test_producer_may_be_listed_as_one_that_is_told_of_endpoints(warned):
    text = """\
plugins: [{type: token-load-scorer}, {type: inflight-load-producer}, {type: endpoint-notification-source}]
dataLayer:
  sources: [{pluginRef: endpoint-notification-source, extractors: [{pluginRef: inflight-load-producer}]}]
"""
    (warning,) = [line for line in warned(text) if "dataLayer" in line]
    assert warning == (
        "c.yaml:5:68: dataLayer.sources[0].extractors[0]: has no effect: plugin 'inflight-load-producer' is notified "
        "of endpoints in any case"
    )
