# SPDX-License-Identifier: Apache-2.0
"""Plugins read objects of a real cluster: those of the guide, those of other packages, and those that are built in."""

import re
from pathlib import Path

import pytest

from tests.support.kube import manifests as write
from tests.support.kube.fleet import fleet_in
from tests.support.kube.hardware import (
    H100,
    HARDWARE_ROLE,
    READ,
    T4,
    accelerator_class,
    label_nodes,
    node_of,
    picker_with,
    pods_on_nodes,
    served_by,
)
from tests.support.kube.users import PICKER_ROLE

GUIDE = Path(__file__).parents[2] / "docs" / "plugins.md"
FILTER = "parameters: {fallbackOnEmpty: false}"


@pytest.fixture
async def fleet(space):
    """Pods `a` and `b`, each with one GPU of its own node."""
    async with fleet_in(space) as fleet:
        await pods_on_nodes(fleet)
        await label_nodes(space)
        yield fleet


async def test_plugin_of_the_guide_keeps_requests_away_from_nodes_under_maintenance(space, fleet, tmp_path):
    (code,) = re.findall(
        r"^```python\n# my_plugins/maintenance.py\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "maintenance.py").write_text(code)
    text = f"""
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: maintenance:MaintenanceTagger
- {{type: "maintenance:MaintenanceFilter", {FILTER}}}
"""
    flag = "--allow-plugin-modules=maintenance"
    async with picker_with(space, tmp_path, text, flag, PYTHONPATH=str(tmp_path)) as picker:
        await served_by(picker, "a", "b")
        node = write.manifest("v1", "Node", node_of(space, "a"))
        await space.annotate(node, **{"example.com/maintenance": "today"})
        await served_by(picker, "b")
        await space.annotate(node, **{"example.com/maintenance": None})
        await served_by(picker, "a", "b")


async def test_notification_source_gives_an_extractor_objects_of_any_kind(space, fleet, tmp_path):
    text = f"""
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: k8s-notification-source, parameters: {{version: v1, kind: ConfigMap}}}}
- {{type: "object_plugins:PausedTagger", name: paused}}
- {{type: "object_plugins:PausedFilter", {FILTER}}}
dataLayer:
  sources: [{{pluginRef: k8s-notification-source, extractors: [{{pluginRef: paused}}]}}]
"""
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": READ}
    role = {**HARDWARE_ROLE, "kind": "Role", "rules": [rule]}
    modules = str(Path(__file__).parent)
    flag = "--allow-plugin-modules=object_plugins"

    def paused(pod: str) -> dict:
        return write.manifest("v1", "ConfigMap", "paused", space.namespace, data={f"{pod}-rank-0": ""})

    async with picker_with(space, tmp_path, text, flag, roles=(PICKER_ROLE, role), PYTHONPATH=modules) as picker:
        await served_by(picker, "a", "b")
        await space.apply(paused("a"))
        await served_by(picker, "b")
        await space.apply(paused("b"))
        await served_by(picker, "a")
        await space.delete(paused("b"))
        await served_by(picker, "a", "b")


async def test_notification_sources_give_the_accelerator_source_just_these_kinds(space, fleet, tmp_path):
    text = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: k8s-notification-source, name: nodes, parameters: {version: v1, kind: Node}}
- {type: k8s-notification-source, name: classes, parameters: {group: ome.io, version: v1beta1, kind: AcceleratorClass}}
- {type: accelerator-data-source, parameters: {readCluster: false}}
- {type: accelerator-filter, parameters: {acceleratorClasses: [gold], fallbackOnEmpty: false}}
dataLayer:
  sources:
  - {pluginRef: nodes, extractors: [{pluginRef: accelerator-data-source}]}
  - {pluginRef: classes, extractors: [{pluginRef: accelerator-data-source}]}
"""
    await space.apply(accelerator_class(H100["nvidia.com/gpu.product"]))
    async with picker_with(space, tmp_path, text) as picker:
        await served_by(picker, "a")
        await space.apply(accelerator_class(T4["nvidia.com/gpu.product"]))
        await served_by(picker, "b")
        _, health = await picker.health()
        watched = {watch["resource"] for watch in health["kubernetes"]["watches"]}
        assert {"nodes", "acceleratorclasses.ome.io"} <= watched
        assert "resourceslices.resource.k8s.io" not in watched
