# SPDX-License-Identifier: Apache-2.0
"""Sources of cluster objects and the plugins that read them."""

import pytest

from epp.framework.cluster_objects import ObjectKind

NODES = "{type: k8s-notification-source, parameters: {version: v1, kind: Node}}"
NODE = ObjectKind("", "Node", "v1")


def sources(*extractors: str, source: str = "k8s-notification-source") -> str:
    listed = ", ".join(f"{{pluginRef: {name}}}" for name in extractors)
    return f"dataLayer: {{sources: [{{pluginRef: {source}, extractors: [{listed}]}}]}}"


def kinds(assembly) -> dict[str, tuple[ObjectKind, ...]]:
    return {reading.reader.name: reading.kinds for reading in assembly.readings}


def test_extractor_reads_the_kind_of_its_source_and_its_own_ones_without_a_source(build):
    found = build(f"plugins: [{NODES}, {{type: topology-extractor}}]\n{sources('topology-extractor')}")
    assert kinds(found) == {"topology-extractor": (NODE,)}
    assert [tagger.name for tagger in found.taggers] == ["topology-extractor"]
    assert [feed.source.plugin_type for feed in found.feeds] == ["metrics-data-source"]
    found = build("plugins: [{type: accelerator-data-source}, {type: topology-extractor}]")
    assert kinds(found)["topology-extractor"] == (ObjectKind("", "Node"),)
    assert ObjectKind("ome.io", "AcceleratorClass") in kinds(found)["accelerator-data-source"]
    source = "{type: accelerator-data-source, parameters: {readCluster: false}}"
    found = build(f"plugins: [{NODES}, {source}]\n{sources('accelerator-data-source')}")
    assert kinds(found) == {"accelerator-data-source": (NODE,)}


def test_hardware_is_read_where_a_plugin_reads_it_and_not_otherwise(build):
    assert kinds(build("plugins: [{type: queue-scorer}]")) == {}
    assert kinds(build("plugins: [{type: cheapest-scorer}]"))["accelerator-data-source"]


def test_extractor_of_another_role_is_refused(refused):
    (problem,) = refused(f"plugins: [{NODES}, {{type: core-metrics-extractor}}]\n{sources('core-metrics-extractor')}")
    assert str(problem).startswith("c.yaml:4:")
    assert "plugin 'core-metrics-extractor' (type core-metrics-extractor) does not implement ObjectReader" in str(
        problem
    )


@pytest.mark.parametrize("reader", ["topology-extractor", "accelerator-data-source"])
def test_kind_that_an_extractor_cannot_use_is_refused(refused, reader):
    source = "{type: k8s-notification-source, parameters: {group: apps, version: v1, kind: Deployment}}"
    (problem,) = refused(f"plugins: [{source}, {{type: {reader}}}]\n{sources(reader)}")
    assert f"plugin {reader!r} (type {reader}) reads no objects of kind Deployment.apps" in str(problem)


def test_source_without_extractors_is_warned_of_and_one_that_cannot_be_built_is_the_only_problem(warned, refused):
    (warning,) = warned(f"plugins: [{NODES}]\n{sources()}")
    assert "has no effect without extractors" in warning
    source = "{type: k8s-notification-source, parameters: {kind: Node}}"
    (problem,) = refused(f"plugins: [{source}, {{type: topology-extractor}}]\n{sources('topology-extractor')}")
    assert "version" in str(problem)
