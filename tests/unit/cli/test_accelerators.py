# SPDX-License-Identifier: Apache-2.0
"""`epp accelerators` shows what is behind each endpoint."""

import json

import pytest
from click.testing import Result
from typer.testing import CliRunner

from epp.cli.app import application

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: queue-scorer}
dataLayer: {discovery: {pluginRef: file-discovery}}
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
def directory(tmp_path, monkeypatch):
    """The current directory, with these files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "sliced.yaml").write_text(SLICED)
    return tmp_path


def invoked(*arguments: str, expect: int = 0) -> Result:
    result = CliRunner().invoke(application(), ["accelerators", *arguments])
    assert result.exit_code == expect, result.output
    return result


def run(*arguments: str, expect: int = 0) -> str:
    return invoked(*arguments, expect=expect).output


def report_of(*arguments: str) -> dict:
    return json.loads(invoked(*arguments, "--output=json").stdout)


def test_table_has_hardware_slice_price_and_who_says_so(directory):
    text = run("--config-file=config.yaml")
    row, *_ = [line for line in text.splitlines() if "default/slice" in line]
    assert row.split()[:8] == ["default/slice", "1", "x", "nvidia", "a100", "3g.20gb", "20", "GiB"]
    assert "1.00" in row  # half of the memory of a $2 device
    assert "labels: kind" in text
    assert "'abacus[1]' is neither an AcceleratorClass nor a product of the catalogue" in " ".join(text.split())


def test_json_is_for_programs(directory):
    report = report_of("--config-file=config.yaml")
    first = report["endpoints"][0]
    assert (first["endpoint"], first["costPerHour"]) == ("default/slice", 1.0)
    assert first["tag"]["partition"]["profile"] == "3g.20gb"
    assert first["tag"]["provenance"]["per_hour"] == "endpoint list"
    features = report["endpoints"][1]["tag"]["features"]
    assert features == sorted(features)  # the same output every time
    assert len(features) > 1


def test_is_13_fit_report_says_how_many_more_slices_fit(directory):
    report = report_of("--objects=sliced.yaml", "--fit")
    assert report["fit"] == {
        "gpu-node-1": {
            "GPU-a": {
                "1g.5gb": 3, "1g.5gb+me": 1, "1g.10gb": 2, "2g.10gb": 1, "3g.20gb": 1, "4g.20gb": 0, "7g.40gb": 0,
            },
        },
    }  # fmt: skip
    assert "1g.5gb x 3" in run("--objects=sliced.yaml", "--fit")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([], "error: no endpoints: give --endpoints"),
        (["--objects=nowhere.yaml", "--fit"], "error: --objects: there is no file or directory 'nowhere.yaml'\n"),
        (["--config-file=config.yaml", "--prices=nowhere"], "error: --prices: there is no file 'nowhere'\n"),
    ],
)
def test_ome_7_missing_endpoints_objects_or_prices_are_an_error_of_their_flag(directory, flags, error):
    assert run(*flags, expect=1).startswith(error)


def test_objects_that_cannot_be_read_are_counted_and_named(directory):
    (directory / "sliced.yaml").write_text(SLICED + "---\n" + SLICED.replace("{name: gpu-node-1,", "{name: [],"))
    report = report_of("--objects=sliced.yaml", "--fit")
    assert (list(report["fit"]), report["skipped"]) == (["gpu-node-1"], 1)
    (problem,) = report["problems"]
    assert "sliced.yaml" in problem


PODS = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata:
    name: n1
    labels:
      nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      node.kubernetes.io/instance-type: p5.48xlarge
      topology.kubernetes.io/region: us-east-1
      karpenter.sh/capacity-type: spot
- apiVersion: v1
  kind: Pod
  metadata: {name: a, namespace: llm, uid: u1}
  spec: {nodeName: n1, containers: [{name: vllm, resources: {limits: {nvidia.com/gpu: "2"}}}]}
  status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: b, namespace: llm, uid: u2}
  spec: {nodeName: n1, containers: [{name: vllm, resources: {limits: {nvidia.com/gpu: "2"}}}]}
  status: {phase: Pending}
"""


def test_pods_of_a_dump_are_the_endpoints(directory):
    (directory / "dump.yaml").write_text(PODS)
    text = run("--objects=dump.yaml")
    (row,) = [line for line in text.splitlines() if "llm/a-rank-0  " in line]
    assert row.split() == ["llm/a-rank-0", "2", "x", "nvidia", "h100", "160", "GiB", "-", "1.00", "unknown"]
    said = " ".join(text.split())
    assert "no endpoint: llm/b: it is not ready" in said
    assert "llm/a: there is neither a containerPort nor an argument --port" in said
    assert "price: no class, variant, node or file of prices: give --prices FILE, or write" in said


def test_ome_7_dump_and_price_file_are_enough_for_prices(directory):
    (directory / "dump.yaml").write_text(PODS)
    (directory / "prices.csv").write_text("instanceType,region,perHour,spotPerHour\np5.48xlarge,us-east-1,98.32,40\n")
    report = report_of("--objects=dump.yaml", "--prices=prices.csv")
    (endpoint,) = report["endpoints"]
    # a spot node: 40 / 8 = 5 each
    assert endpoint["costPerHour"] == 10
    assert endpoint["priceSource"] == "prices.csv: p5.48xlarge in us-east-1"


def test_dump_without_model_servers_says_so(directory):
    text = run("--objects=sliced.yaml")
    assert "no endpoints: the files have no pods that request accelerators and are ready" in text


def test_ome_7_prices_of_a_file_are_shown_with_their_source(directory):
    (directory / "prices.yaml").write_text(
        "prices: [{accelerator: t4, perHour: 0.53}, {accelerator: a100, perHour: 9}]"
    )
    shown = report_of("--config-file=config.yaml", "--prices=prices.yaml")
    report = {each["endpoint"]: each for each in shown["endpoints"]}
    assert (report["default/t4"]["costPerHour"], report["default/t4"]["priceSource"]) == (0.53, "prices.yaml: t4")
    assert report["default/slice"]["priceSource"] == "endpoint list"
    assert "prices.yaml: t4: per_hour" in run("--config-file=config.yaml", "--prices=prices.yaml")


def test_price_that_nobody_gave_is_shown_as_unknown(directory):
    row = next(line for line in run("--config-file=config.yaml").splitlines() if "default/t4" in line)
    assert row.split()[:9] == ["default/t4", "1", "x", "nvidia", "t4", "16", "GiB", "-", "0.65"]
    (row,) = [line for line in run("--endpoints=a=10.0.0.9:80").splitlines() if " default/a " in line]
    assert row.split()[:5] == ["default/a", "unknown", "-", "-", "1.00"]
    report = report_of("--endpoints=a=10.0.0.9:80")["endpoints"][0]
    assert report["costPerHour"] is None
    assert set(report["tag"]["cost"].values()) == {None, ""}


def test_everything_fits_into_80_columns_without_a_word_cut(directory, monkeypatch):
    monkeypatch.setattr("epp.cli.input_output._PIPED_WIDTH", 80)
    text = run("--endpoints=one=8000;accelerator=h100,other=8001;accelerator=a100", "--fit")
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["endpoint", "accelerator", "class", "slice", "memory", "$/h", "capacity", "state"] in rows
    assert ["default/one", "1", "x", "nvidia", "h100"] in [row[:5] for row in rows]
    assert "    catalogue/h100-sxm-80gb: kind, vendor, family," in text


QUOTA = """
apiVersion: tensor-fusion.ai/v1
kind: GPUResourceQuota
metadata: {name: quota, namespace: team-a}
spec:
  total: {requests: {tflops: "500", vram: 200Gi}, maxWorkers: 20, alertThresholdPercent: 90}
  single: {maxGPUCount: 4}
status: {used: {requests: {tflops: "310", vram: 190Gi}, workers: 7}}
"""


def test_tf_1_quotas_are_shown_with_what_is_used_of_them(directory):
    (directory / "quota.yaml").write_text(QUOTA)
    options = ("--config-file=config.yaml", "--objects=quota.yaml")
    text = run(*options)
    lines = [line.split() for line in text[text.index("quotas") :].splitlines() if "team-a" in line]
    assert lines == [
        ["team-a", "requests.tflops", "310", "500"],
        ["team-a", "requests.vram", "190", "GiB", "200", "GiB", "above", "90", "%"],
        ["team-a", "workers", "7", "20"],
        ["team-a", "single.maxGPUCount", "4"],
    ]
    (quota,) = report_of(*options)["quotas"]
    assert quota["total"]["requests.vram"] == {"limit": 200 * 2**30, "used": 190 * 2**30, "alert": True}


def test_facts_that_no_source_has_are_said_with_their_remedy(directory):
    text = " ".join(run("--endpoints=a=10.0.0.9:80,b=8000;accelerator=h100").split())
    missing = text[text.index(" missing ") :]
    assert "price: no class, variant, node or file of prices: give --prices FILE, or write cost.perHour" in missing
    assert "in an override default/a, default/b" in missing  # both lack a price
    assert "memory: no label, class or row of the catalogue: write memory under accelerator" in missing
    report = report_of("--endpoints=a=10.0.0.9:80,b=8000;accelerator=h100")
    facts = [[each["fact"] for each in endpoint["missing"]] for endpoint in report["endpoints"]]
    assert facts == [["accelerator", "count", "memory", "TFLOPS", "price"], ["price"]]


def test_nothing_is_missing_of_an_endpoint_without_accelerators(directory):
    cpu = "{name: cpu, address: 10.0.0.2, port: 80, accelerator: {kind: cpu}}"
    (directory / "endpoints.yaml").write_text(f"endpoints: [{cpu}]")
    assert report_of("--config-file=config.yaml")["endpoints"][0]["missing"] == []


IMPOSSIBLE = """
apiVersion: ome.io/v1beta1
kind: AcceleratorClass
metadata: {name: t4}
spec: {discovery: {nodeSelector: {nvidia.com/gpu.product: Tesla-T4}}, cost: {perHour: "-3"}}
---
{apiVersion: ome.io/v1beta1, kind: NoSuchKind, metadata: {name: x}}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: s}
spec: {acceleratorSelector: {constraints: {minMemory: -4}}}
"""


def test_impossible_values_of_objects_are_said_and_json_has_nothing_else_beside(directory):
    (directory / "broken.yaml").write_text(IMPOSSIBLE)
    broken = "broken.yaml"
    sentences = [
        f"{broken}: AcceleratorClass t4: spec.cost.perHour is -3: write US dollars, 0 or more; it is ignored",
        f"objects of kind NoSuchKind (ome.io) have no effect: 1 in {broken}",
        (
            f"{broken}: InferenceService default/s: spec.acceleratorSelector.constraints.minMemory is -4: write a "
            "quantity such as 40Gi, or a number of GiB above 0; it is ignored"
        ),
    ]
    flags = ("--config-file=config.yaml", f"--objects={broken}")
    text = run(*flags)
    assert [line.removeprefix("! ") for line in text.splitlines() if line.startswith("! ")] == sentences
    report = report_of(*flags)
    assert report["problems"] == sentences
    (t4,) = [each for each in report["endpoints"] if each["endpoint"] == "default/t4"]
    assert (t4["tag"]["classes"], t4["costPerHour"]) == (["t4"], None)
