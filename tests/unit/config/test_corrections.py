# SPDX-License-Identifier: Apache-2.0
"""Values that llm-d-router corrects: they count the same here, and `epp check` shows each with its place."""

import re

import msgspec
import pytest

CORRECTED = [
    ("max-score-picker", "maxNumOfEndpoints: 0", 1, "is 0; it must be at least 1: 1 counts"),
    ("random-picker", "maxNumOfEndpoints: -3", 1, "is -3; it must be at least 1: 1 counts"),
    ("weighted-random-picker", "maxNumOfEndpoints: 0", 1, "1 counts instead"),
    ("load-aware-scorer", "threshold: 0", 128.0, "threshold is 0; it must be above 0: 128 counts"),
    ("load-aware-scorer", "threshold: -1", 128.0, "128 counts instead"),
    ("token-load-scorer", "queueThresholdTokens: 0", 4194304, "4194304 counts instead"),
    ("no-hit-lru-scorer", "lruSize: 0", 1024, "lruSize is 0; it must be at least 1: 1024 counts"),
    ("active-request-scorer", "maxBusyScore: 2", 1.0, "must be between 0 and 1: 1 counts"),
    ("active-request-scorer", "maxBusyScore: -0.5", 1.0, "maxBusyScore is -0.5"),
    ("active-request-scorer", "idleThreshold: -1", 0, "it must be 0 or more: 0 counts instead"),
    ("approx-prefix-cache-producer", "blockSizeTokens: 16", 64, "must be at least 64: 64 counts"),
    ("approx-prefix-cache-producer", "blockSizeTokens: 0", 64, "64 counts instead"),
    ("approx-prefix-cache-producer", "lruCapacityPerServer: 0", 31250, "31250 counts"),
    ("metrics-data-source", "path: metrics", "/metrics", 'starts with a slash: "/metrics" counts instead'),
    ("metrics-data-source", 'path: ""', "/", 'path is empty: "/" counts instead'),
    ("metrics-data-source", "port: 0", None, "port is 0; it must be between 1 and 65535, or left out: it"),
    ("models-data-source", "path: models", "/models", '"/models" counts instead'),
    ("dcgm-data-source", "port: 0", None, "it counts as left out"),
    ("core-metrics-extractor", 'defaultEngine: ""', "vllm", 'is empty: "vllm" counts instead'),
    ("core-metrics-extractor", 'engineLabelKey: ""', "llm-d.ai/engine-type", "is empty"),
    ("topology-extractor", 'rack: ""', "topology.kubernetes.io/rack", "rack is empty"),
    ("header-profile-handler", 'headerName: ""', "EPP-Profile", "headerName is empty"),
    ("header-profile-handler", 'defaultProfile: ""', "decode", "defaultProfile is empty"),
    ("data-parallel-profile-handler", "primaryPort: 0", 8000, "8000 counts instead"),
    (
        "session-affinity-filter",
        "sessionIdConfig: {evictionTtlSeconds: 0}",
        300.0,
        "it must be above 0: 300 counts inst",
    ),
    ("session-affinity-filter", "sessionIdConfig: {evictionSweepSeconds: 0}", 10.0, "10 counts instead"),
    ("session-affinity-filter", 'encodedEndpointHeaderConfig: {header: ""}', "x-session-token", "header is empty: "),
]


@pytest.mark.parametrize(("kind", "given", "counts", "warning"), CORRECTED)
def test_corrected_value_counts_and_is_warned_of_with_its_place(build, kind, given, counts, warning):
    parameters, warnings = built(build, kind, given)
    value = msgspec.to_builtins(parameters)
    for key in re.findall(r"\w+(?=:)", given):
        value = value[key]
    assert value == counts
    (found,) = [one for one in warnings if warning in one.message]
    assert found.path[:3] == ("plugins", 0, "parameters")


def test_key_in_other_capitals_counts_and_a_mistake_under_it_is_found_where_it_stands(build, refused):
    parameters, warnings = built(build, "prefix-cache-affinity-filter", "maxTtftPenaltyMs: 5")
    assert parameters.max_ttft_penalty_ms == 5.0
    assert "maxTtftPenaltyMs is read as maxTTFTPenaltyMs: use this spelling" in warnings[0].message
    parameters = "{SessionIDConfig: {EvictionTTLSeconds: -1}}"
    (problem,) = refused(f"plugins: [{{type: session-affinity-filter, parameters: {parameters}}}]", experimental=True)
    assert str(problem).startswith("c.yaml:3:74: plugins[0].parameters.SessionIDConfig.EvictionTTLSeconds: ")
    assert "evictionTtlSeconds is -1" in str(problem)


def built(build, kind, given):
    """The parameters of a plugin, and the warnings about them, which all have their place."""
    text = f"plugins:\n- type: {kind}\n  parameters:\n    {given}\n- type: random-picker\n  name: other\n"
    profile = "schedulingProfiles: [{name: decode, plugins: [{pluginRef: other}]}]\n"
    assembly = build(text + profile, experimental=True)
    return assembly.instances.by_name[kind].parameters, [
        one for one in assembly.warnings if str(one).startswith("c.yaml:6:")
    ]


def test_empty_list_of_session_sources_is_the_default_one(build):
    _, warnings = built(build, "session-affinity-scorer", "{strategy: session_id, sessionIdConfig: {sources: []}}")
    (found,) = [one.message for one in warnings if "counts instead" in one.message]
    assert found.startswith("plugin 'session-affinity-scorer': sources is empty: [")
    assert '"header":"x-session-id"' in found


def test_whole_number_may_have_a_point_and_an_empty_value_is_left_out(build):
    assembly = build("plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: 2.0}}]\n")
    assert assembly.instances.by_name["max-score-picker"].parameters.max_num_of_endpoints == 2
    assert assembly.warnings == ()
    assembly = build("plugins:\n- type: no-hit-lru-scorer\n  parameters:\n    lruSize:\n")
    assert assembly.instances.by_name["no-hit-lru-scorer"].parameters.lru_size == 1024


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        ("max-score-picker", "maxNumOfEndpoints: none", "maxNumOfEndpoints is 'none'; write a whole number"),
        ("max-score-picker", "maxNumOfEndpoints: 2.5", "maxNumOfEndpoints is 2.5; write a whole number"),
        ("max-score-picker", "maxNumOfEndpoints: false", "maxNumOfEndpoints is false; write a whole number"),
        ("active-request-scorer", "maxBusyScore: .nan", "maxBusyScore is nan; it must be between 0 and 1"),
        ("load-aware-scorer", "{threshold: 0, Threshold: 1}", "unknown key; did you mean 'threshold'?"),
        ("metrics-data-source", "port: -1", "port is -1; it must be between 1 and 65535"),
        ("session-affinity-filter", "sessionIdConfig: {evictionTtlSeconds: -1}", "evictionTtlSeconds is -1"),
    ],
)
def test_value_that_the_reference_refuses_too_is_an_error(refused, kind, given, sentence):
    (problem,) = refused(f"plugins:\n- type: {kind}\n  parameters:\n    {given}\n", experimental=True)
    assert sentence in str(problem)
