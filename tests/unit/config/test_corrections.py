# SPDX-License-Identifier: Apache-2.0
"""Values that llm-d-router corrects: they count the same here, and `epp check` shows each with its place."""

from functools import reduce

import pytest


def value_of(parameters, field):
    return reduce(getattr, field.split("."), parameters)


@pytest.mark.parametrize(
    ("kind", "given", "corrected"),
    [
        (
            "max-score-picker",
            "maxNumOfEndpoints: 0",
            ("max_num_of_endpoints", 1, "is 0; it must be at least 1: 1 counts"),
        ),
        (
            "random-picker",
            "maxNumOfEndpoints: -3",
            ("max_num_of_endpoints", 1, "is -3; it must be at least 1: 1 counts"),
        ),
        ("weighted-random-picker", "maxNumOfEndpoints: 0", ("max_num_of_endpoints", 1, "1 counts instead")),
        ("load-aware-scorer", "threshold: 0", ("threshold", 128.0, "threshold is 0; it must be above 0: 128 counts")),
        ("load-aware-scorer", "threshold: -1", ("threshold", 128.0, "128 counts instead")),
        ("token-load-scorer", "queueThresholdTokens: 0", ("queue_threshold_tokens", 4194304, "4194304 counts instead")),
        ("no-hit-lru-scorer", "lruSize: 0", ("lru_size", 1024, "lruSize is 0; it must be at least 1: 1024 counts")),
        ("active-request-scorer", "maxBusyScore: 2", ("max_busy_score", 1.0, "must be between 0 and 1: 1 counts")),
        ("active-request-scorer", "maxBusyScore: -0.5", ("max_busy_score", 1.0, "maxBusyScore is -0.5")),
        ("active-request-scorer", "idleThreshold: -1", ("idle_threshold", 0, "it must be 0 or more: 0 counts instead")),
        (
            "approx-prefix-cache-producer",
            "blockSizeTokens: 16",
            ("block_size_tokens", 64, "must be at least 64: 64 counts"),
        ),
        ("approx-prefix-cache-producer", "blockSizeTokens: 0", ("block_size_tokens", 64, "64 counts instead")),
        ("approx-prefix-cache-producer", "lruCapacityPerServer: 0", ("lru_capacity_per_server", 31250, "31250 counts")),
        (
            "metrics-data-source",
            "path: metrics",
            ("path", "/metrics", 'starts with a slash: "/metrics" counts instead'),
        ),
        ("metrics-data-source", 'path: ""', ("path", "/", 'path is empty: "/" counts instead')),
        (
            "metrics-data-source",
            "port: 0",
            ("port", None, "port is 0; it must be between 1 and 65535, or left out: it"),
        ),
        ("models-data-source", "path: models", ("path", "/models", '"/models" counts instead')),
        ("dcgm-data-source", "port: 0", ("port", None, "it counts as left out")),
        ("core-metrics-extractor", 'defaultEngine: ""', ("default_engine", "vllm", 'is empty: "vllm" counts instead')),
        ("core-metrics-extractor", 'engineLabelKey: ""', ("engine_label_key", "llm-d.ai/engine-type", "is empty")),
        ("topology-extractor", 'rack: ""', ("rack", "topology.kubernetes.io/rack", "rack is empty")),
        ("header-profile-handler", 'headerName: ""', ("header_name", "EPP-Profile", "headerName is empty")),
        ("header-profile-handler", 'defaultProfile: ""', ("default_profile", "decode", "defaultProfile is empty")),
        ("data-parallel-profile-handler", "primaryPort: 0", ("primary_port", 8000, "8000 counts instead")),
        (
            "session-affinity-filter",
            "sessionIdConfig: {evictionTtlSeconds: 0}",
            (
                "session_id_config.eviction_ttl_seconds",
                300.0,
                "evictionTtlSeconds is 0; it must be above 0: 300 counts instead",
            ),
        ),
        (
            "session-affinity-filter",
            "sessionIdConfig: {evictionSweepSeconds: 0}",
            ("session_id_config.eviction_sweep_seconds", 10.0, "10 counts instead"),
        ),
        (
            "session-affinity-filter",
            'encodedEndpointHeaderConfig: {header: ""}',
            (
                "encoded_endpoint_header_config.header",
                "x-session-token",
                'header is empty: "x-session-token" counts instead',
            ),
        ),
        (
            "prefix-cache-affinity-filter",
            "maxTtftPenaltyMs: 5",
            ("max_ttft_penalty_ms", 5.0, "maxTtftPenaltyMs is taken for maxTTFTPenaltyMs: write it in these capitals"),
        ),
    ],
)
def test_corrected_value_counts_and_is_warned_of_with_its_place(build, kind, given, corrected):
    field, counts, warning = corrected
    text = f"plugins:\n- type: {kind}\n  parameters:\n    {given}\n- type: random-picker\n  name: other\n"
    profile = "schedulingProfiles: [{name: decode, plugins: [{pluginRef: other}]}]\n"
    assembly = build(text + profile, experimental=True)
    assert value_of(assembly.instances.by_name[kind].parameters, field) == counts
    (found,) = [one for one in assembly.warnings if warning in one.message]
    assert found.position.line == 6
    assert str(found).startswith("c.yaml:6:")
    assert found.path[:3] == ("plugins", 0, "parameters")


def test_empty_list_of_session_sources_is_the_default_one(build):
    (found,) = [
        one.message
        for one in build(
            """\
plugins: [{type: session-affinity-scorer, parameters: {strategy: session_id, sessionIdConfig: {sources: []}}}]
""",
            experimental=True,
        ).warnings
        if "counts instead" in one.message
    ]
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


def test_mistake_under_a_key_in_other_capitals_is_found_where_it_stands(refused):
    text = (
        "plugins:\n- type: session-affinity-filter\n  parameters:\n    SessionIDConfig:\n      EvictionTTLSeconds: -1\n"
    )
    (problem,) = refused(text, experimental=True)
    assert str(problem).startswith(
        "c.yaml:7:7: plugins[0].parameters.SessionIDConfig.EvictionTTLSeconds: plugin 'session-affinity-filter': "
        "evictionTtlSeconds is -1"
    )
