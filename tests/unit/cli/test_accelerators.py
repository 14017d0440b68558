# SPDX-License-Identifier: Apache-2.0
"""`epp accelerators` shows what is behind each endpoint."""

import json

import pytest
from typer.testing import CliRunner

from epp.cli.app import application

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: file-discovery, parameters: {{path: {directory}/endpoints.yaml}}}}
- {{type: queue-scorer}}
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
"""
ENDPOINTS = """
endpoints:
- {name: slice, address: 10.0.0.2, port: 8000, accelerator: {class: a100-40gb, profile: 3g.20gb, costPerHour: 2.0}}
- {name: t4, address: 10.0.0.3, port: 8000, labels: {nvidia.com/gpu.product: Tesla-T4, nvidia.com/gpu.count: "1"}}
- {name: odd, address: 10.0.0.4, port: 8000, accelerator: {class: "abacus[1]"}}
"""
SLICED = """
apiVersion: inference.redhat.com/v1alpha1
kind: Instaslice
metadata: {name: gpu-node-1, namespace: instaslice-system}
spec: {podAllocationRequests: {u: {profile: 3g.20gb, podRef: {namespace: llm, name: a, uid: u}}}}
status:
  conditions: [{type: Ready, status: "True"}]
  nodeResources:
    nodeGpus: [{gpuUuid: GPU-a, gpuName: NVIDIA A100-SXM4-40GB, gpuMemory: 40Gi}]
  podAllocationResults:
    u:
      allocationStatus: {allocationStatusController: ungated, allocationStatusDaemonset: created}
      gpuUUID: GPU-a
      migPlacement: {size: 4, start: 0}
      nodename: gpu-node-1
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    (tmp_path / "config.yaml").write_text(CONFIG.format(directory=tmp_path))
    (tmp_path / "sliced.yaml").write_text(SLICED)
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(application(), ["accelerators", *arguments])
    return result.exit_code, result.output


def test_table_has_hardware_slice_price_and_who_says_so(directory):
    exit_code, text = run(f"--config-file={directory}/config.yaml")
    assert exit_code == 0
    row, *_ = [line for line in text.splitlines() if "default/slice" in line]
    assert row.split()[:8] == ["default/slice", "1", "x", "nvidia", "a100", "3g.20gb", "20", "GiB"]
    assert "1.00" in row  # half of the memory of a $2 device
    assert "labels: kind" in text
    assert "'abacus[1]' is neither an AcceleratorClass nor a product of the catalogue" in " ".join(text.split())


def test_json_is_for_programs(directory):
    exit_code, text = run(f"--config-file={directory}/config.yaml", "--output=json")
    assert exit_code == 0
    report = json.loads(text)
    first = report["endpoints"][0]
    assert (first["endpoint"], first["costPerHour"]) == ("default/slice", 1.0)
    assert first["tag"]["partition"]["profile"] == "3g.20gb"
    assert first["tag"]["provenance"]["per_hour"] == "endpoint list"
    features = report["endpoints"][1]["tag"]["features"]
    assert features == sorted(features)  # the same output every time
    assert len(features) > 1


def test_is_13_fit_report_says_how_many_more_slices_fit(directory):
    exit_code, text = run(f"--objects={directory}/sliced.yaml", "--fit", "--output=json")
    assert exit_code == 0
    assert json.loads(text)["fit"] == {
        "gpu-node-1": {
            "GPU-a": {
                "1g.5gb": 3, "1g.5gb+me": 1, "1g.10gb": 2, "2g.10gb": 1, "3g.20gb": 1, "4g.20gb": 0, "7g.40gb": 0,
            },
        },
    }  # fmt: skip
    assert "1g.5gb x 3" in run(f"--objects={directory}/sliced.yaml", "--fit")[1]


def test_missing_endpoints_are_a_clear_error():
    exit_code, text = run()
    assert exit_code == 1
    assert "error: no endpoints: give --endpoints" in text


def test_missing_objects_are_an_error_of_their_flag():
    exit_code, text = run("--objects=nowhere.yaml", "--fit")
    assert exit_code == 1
    assert text == "error: --objects: there is no file or directory 'nowhere.yaml'\n"


def test_objects_that_cannot_be_read_are_counted_and_named(directory):
    (directory / "sliced.yaml").write_text(SLICED + "---\n" + SLICED.replace("{name: gpu-node-1,", "{name: [],"))
    exit_code, text = run(f"--objects={directory}/sliced.yaml", "--fit", "--output=json")
    assert exit_code == 0
    report = json.loads(text[text.index("{\n") :])  # after what the log says
    assert (list(report["fit"]), report["skipped"]) == (["gpu-node-1"], 1)
    (problem,) = report["problems"]
    assert f"{directory}/sliced.yaml" in problem


def test_price_that_nobody_gave_is_shown_as_unknown(directory):
    row = next(line for line in run(f"--config-file={directory}/config.yaml")[1].splitlines() if "default/t4" in line)
    assert row.split()[:9] == ["default/t4", "1", "x", "nvidia", "t4", "16", "GiB", "-", "0.65"]
    (row,) = [line for line in run("--endpoints=a=10.0.0.9:80")[1].splitlines() if "default/a" in line]
    assert row.split()[:5] == ["default/a", "unknown", "-", "-", "1.00"]
    report = json.loads(run("--endpoints=a=10.0.0.9:80", "--output=json")[1])["endpoints"][0]
    assert report["costPerHour"] is None
    assert set(report["tag"]["cost"].values()) == {None, ""}


def test_everything_fits_into_80_columns_without_a_word_cut(directory, monkeypatch):
    monkeypatch.setattr("epp.cli.output._PIPED_WIDTH", 80)
    exit_code, text = run("--endpoints=one=8000;accelerator=h100,other=8001;accelerator=a100", "--fit")
    assert exit_code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["endpoint", "accelerator", "class", "slice", "memory", "$/h", "capacity", "state"] in rows
    assert ["default/one", "1", "x", "nvidia", "h100"] in [row[:5] for row in rows]
    assert "    catalogue/h100-sxm-80gb: kind, vendor, family," in text


IMPOSSIBLE = """
apiVersion: ome.io/v1beta1
kind: AcceleratorClass
metadata: {name: t4}
spec: {discovery: {nodeSelector: {nvidia.com/gpu.product: Tesla-T4}}, cost: {perHour: "-3"}}
---
{apiVersion: ome.io/v1beta1, kind: NoSuchKind, metadata: {name: x}}
"""


def test_impossible_values_of_objects_are_said_and_json_has_nothing_else_beside(directory):
    (directory / "broken.yaml").write_text(IMPOSSIBLE)
    broken = f"{directory}/broken.yaml"
    sentences = [
        f"objects of kind NoSuchKind (ome.io) are not used: 1 in {broken}; nothing in them has an effect",
        f"{broken}: AcceleratorClass t4: spec.cost.perHour is -3: write US dollars, 0 or more; it is ignored",
    ]
    flags = (f"--config-file={directory}/config.yaml", f"--objects={broken}")
    exit_code, text = run(*flags)
    assert exit_code == 0
    assert [line.removeprefix("! ") for line in text.splitlines() if line.startswith("! ")] == sentences
    report = json.loads(run(*flags, "--output=json")[1])
    assert report["problems"] == sentences
    (t4,) = [each for each in report["endpoints"] if each["endpoint"] == "default/t4"]
    assert (t4["tag"]["classes"], t4["costPerHour"]) == (["t4"], None)
