# SPDX-License-Identifier: Apache-2.0
"""The configuration of a hub over several clusters, as the guide of llm-d has it."""

import pytest

from epp.framework.request import PREFIX_MATCH

HUB = """\
plugins:
- {{type: multicluster-file-discovery, name: discovery, parameters: {{path: {path}, watchFile: true}}}}
- {{type: multicluster-metrics-data-source, name: metrics-source, parameters: {{scheme: http}}}}
- {{type: multicluster-metrics-extractor, name: metrics-extractor}}
- {{type: multicluster-kv-cache-utilization-scorer, name: kv-cache}}
- {{type: multicluster-queue-scorer, name: queue}}
- {{type: max-score-picker, name: picker}}
- {{type: single-profile-handler, name: profile-handler}}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: kv-cache, weight: 1}}, {{pluginRef: queue, weight: 1}}, {{pluginRef: picker}}]
dataLayer:
  discovery: {{endpoints: {{pluginRef: discovery}}}}
  sources: [{{pluginRef: metrics-source, extractors: [{{pluginRef: metrics-extractor}}]}}]
"""
HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


@pytest.fixture
def hub(tmp_path) -> str:
    path = tmp_path / "clusters.yaml"
    path.write_text('endpoints: [{name: a, address: gw.cluster-a.example.com, port: "443"}]\n')
    return HUB.format(path=path)


def test_hub_of_the_guide_reads_the_routers_and_no_engines(build, hub):
    assembly = build(hub, head=HEAD, experimental=True)
    assert assembly.discovery.plugin_type == "multicluster-file-discovery"
    assert [feed.source.plugin_type for feed in assembly.feeds] == ["multicluster-metrics-data-source"]
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    assert [(each.scorer.plugin_type, each.weight) for each in profile.scorers] == [
        ("multicluster-kv-cache-utilization-scorer", 1.0),
        ("multicluster-queue-scorer", 1.0),
    ]
    assert not [warning for warning in assembly.warnings if "multicluster" in str(warning)]


def test_scorers_of_clusters_are_refused_without_the_extractor(refused, hub):
    lines = [line for line in hub.splitlines() if "multicluster-metrics-extractor" not in line]
    text = "\n".join(lines).replace("extractors: [{pluginRef: metrics-extractor}]", "extractors: []")
    unwritten = "which no plugin here writes: add a multicluster-metrics-extractor to plugins, and to a source"
    problems = refused(text, head=HEAD, experimental=True)
    for problem, name in zip(problems, ("kv-cache-utilization", "queue-size"), strict=True):
        assert f"reads 'llm-d.ai/multicluster-{name}', {unwritten}" in problem.message


def test_plugins_of_clusters_are_experimental(refused, hub):
    assert "--allow-experimental-plugins" in str(refused(hub, head=HEAD)[0])


def test_prefixes_and_sessions_of_clusters_are_those_of_endpoints(build):
    assembly = build(
        """\
plugins:
- {type: multicluster-approx-prefix-cache-producer, parameters: {autoTune: false, blockSizeTokens: 96}}
- {type: multicluster-prefix-cache-scorer}
- {type: multicluster-session-affinity-filter}
""",
        experimental=True,
    )
    producers = [plugin for plugin in assembly.plugins if PREFIX_MATCH in plugin.writes]
    assert [(one.plugin_type, one.parameters.block_size_tokens) for one in producers] == [
        ("multicluster-approx-prefix-cache-producer", 96)
    ]
    (profile,) = assembly.pipeline.scheduler.profiles.values()
    assert [one.filter.plugin_type for one in profile.filters] == ["multicluster-session-affinity-filter"]
    assert [one.scorer.plugin_type for one in profile.scorers] == ["multicluster-prefix-cache-scorer"]
