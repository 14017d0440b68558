# SPDX-License-Identifier: Apache-2.0
"""`epp check` says which plugins choose by price where there is none."""

import json

import pytest
from typer.testing import CliRunner

from epp.cli.app import application

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: accelerator-data-source, parameters: {{{source}}}}}
- {{type: cheapest-scorer}}
- {{type: queue-scorer}}
{discovery}
"""
ENDPOINTS = """
endpoints:
- {name: dear, address: gpu.example, port: 8000, accelerator: {class: h100, costPerHour: 4}}
- {name: other, address: 10.0.0.2, port: 8000, accelerator: {class: t4}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: llm}
spec: {containers: [{name: vllm, resources: {limits: {nvidia.com/gpu: "1"}}}]}
status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check a configuration; return the exit code, its warnings and its notes."""
    monkeypatch.chdir(tmp_path)

    def run(*, source="", discovery="", files=()):
        for name, text in dict(files).items():
            (tmp_path / name).write_text(text)
        section = ""
        if discovery:
            section = f"- {{type: {discovery}}}\ndataLayer: {{discovery: {{pluginRef: {discovery.split(',')[0]}}}}}"
        (tmp_path / "config.yaml").write_text(CONFIG.format(source=source, discovery=section))
        result = CliRunner().invoke(application(), ["check", "config.yaml", "--strict", "--output=json"])
        (report,) = json.loads(result.stdout)
        found = {
            kind: [each["message"] for each in report[kind] if "price" in each["message"]]
            for kind in ("warnings", "notes")
        }
        return result.exit_code, found["warnings"], found["notes"]

    return run


def test_ome_7_prices_that_may_be_in_the_cluster_are_a_note_and_those_that_can_be_nowhere_a_warning(check):
    code, warnings, notes = check()
    assert (code, warnings) == (0, [])
    (note,) = notes
    assert note.startswith("plugin 'cheapest-scorer' uses prices, but this configuration has no prices")
    assert "all endpoints get 0, which is no preference" in note
    code, warnings, notes = check(source="readCluster: false")
    assert (code, len(warnings), notes) == (2, 1, [])


@pytest.mark.parametrize(
    "source",
    [
        "prices: prices.yaml",
        "gpuCatalogue: gpus.yaml",
        "paths: [class.yaml]",
        "defaults: {class: t4, costPerHour: 1}",
        "overrides: [{node: '*', accelerator: {costPerHour: 1}}]",
    ],
)
def test_ome_7_any_source_of_prices_is_enough(check, source):
    files = {
        "prices.yaml": "prices: [{accelerator: t4, perHour: 1}]",
        "gpus.yaml": "[{model: T4, costPerHour: 0.53}]",
        "class.yaml": "{apiVersion: ome.io/v1beta1, kind: AcceleratorClass, metadata: {name: t4}, "
        "spec: {cost: {perHour: '1'}}}",
    }
    assert check(source=source, files=files) == (0, [], [])


def test_ome_7_endpoints_that_the_configuration_names_and_pods_in_files_are_looked_at(check):
    discovery = "file-discovery, parameters: {path: endpoints.yaml}"
    code, warnings, notes = check(discovery=discovery, files={"endpoints.yaml": ENDPOINTS})
    assert (code, warnings, notes) == (2, ["1 of 2 endpoints have no price: default/other"], [])
    files = {"endpoints.yaml": ENDPOINTS.replace(", costPerHour: 4", "")}
    _, (warning,), _ = check(discovery=discovery, files=files)
    assert "uses prices, but no endpoint has one" in warning
    files["prices.yaml"] = "prices: [{accelerator: h100, perHour: 1}, {accelerator: t4, perHour: 1}]"
    assert check(discovery=discovery, files=files, source="prices: prices.yaml") == (0, [], [])
    discovery = "pod-file-discovery, parameters: {paths: [pods.yaml]}"
    _, (warning,), _ = check(discovery=discovery, files={"pods.yaml": POD})
    assert "no endpoint has one" in warning
