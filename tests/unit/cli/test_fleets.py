# SPDX-License-Identifier: Apache-2.0
"""`epp accelerators` on dumps of whole fleets, as `kubectl get nodes,pods -A -o yaml` writes them.

Where the labels come from is told in tests/data/fleets/README.md. TFLOPS are fp16, of all devices of an endpoint.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from typer.testing import CliRunner

from epp.cli.app import application

FLEETS = Path(__file__).parents[2] / "data" / "fleets"
GIB = 2**30


class Hardware(NamedTuple):
    """Accelerators of one endpoint."""

    kind: str
    model: str
    count: int
    gibibytes: float | None
    """Of each device or part."""
    tflops: float
    """Of all of them."""
    part: str = ""
    spot: bool = False
    missing: str = ""
    """Facts that are said to be unknown, besides the price."""


CPU = Hardware("cpu", "", 0, None, 0)
EXPECTED = {
    "gke-gpu": {
        "gke-llm-a4-b200-77ce1f40-b5rt/deepseek": Hardware("gpu", "b200", 4, 180, 9000),
        "gke-llm-g2-shared-1a7f3c88-m4vz/embed": Hardware("gpu", "l4", 1, 12, 60.5, part="1/2", spot=True),
        "gke-llm-a3-h100-3f1c7a52-x0l2/llama-405b": Hardware("gpu", "h100", 8, 80, 7912),
        "gke-llm-default-pool-02b9a6d1-z1dq": CPU,
        "gke-llm-g4-rtx-5d20be71-q8ch/mistral-24b": Hardware("gpu", "rtx-pro-6000", 1, 96, 468),
        "gke-llm-a2-mig-9b02c1de-7kpn/qwen-7b": Hardware("gpu", "a100", 1, 20, 133.7, part="3g.20gb"),
    },
    "gke-tpu": {
        "gke-tpu-7f50a1c8-7xaa/gemma-7x": Hardware("tpu", "v7x", 4, 192, 9228),
        "gke-tpu-1ea64b97-v5eb/gemma-multihost": Hardware("tpu", "v5e", 4, 16, 788),
        "gke-tpu-4d1e8a20-v4aa/gemma-v4": Hardware("tpu", "v4", 4, 32, 1100),
        "gke-tpu-91c07be3-v5ea/gemma-v5e": Hardware("tpu", "v5e", 8, 16, 1576),
        "gke-tpu-0be37d5a-v5pa/gemma-v5p": Hardware("tpu", "v5p", 4, 95, 1836),
        "gke-tpu-c2d9f164-v6ea/gemma-v6e": Hardware("tpu", "v6e", 4, 32, 3672),
        "gke-tpu-default-pool-5511ab0c-k2mm": CPU,
    },
    "eks-karpenter": {
        "ip-10-4-11-21.ec2.internal/llama-70b": Hardware("gpu", "h100", 4, 80, 3956),
        "ip-10-4-12-88.ec2.internal/llama-8b": Hardware("gpu", "a10g", 1, 22.35, 70, spot=True),
        "ip-10-4-16-7.ec2.internal": CPU,
        "ip-10-4-14-9.ec2.internal/mixtral": Hardware("gpu", "a100", 8, 40, 2496),
        "i-0a9b8c7d6e5f43210/phi": Hardware("gpu", "l4", 1, 22.35, 121),
        "ip-10-4-13-140.ec2.internal/qwen-14b": Hardware("gpu", "l40s", 1, 44.7, 362),
        "ip-10-4-15-30.ec2.internal/rerank": Hardware("gpu", "t4", 1, 16, 65, spot=True),
    },
    "eks-neuron": {
        "ip-10-5-21-10.us-west-2.compute.internal/bert": Hardware("npu", "inferentia1", 1, 2, 16, part="neuroncore"),
        "ip-10-5-25-14.us-west-2.compute.internal/gemma": Hardware("npu", "trainium1", 1, 32, 190),
        "ip-10-5-24-13.us-west-2.compute.internal/llama-405b": Hardware("npu", "trainium2", 16, 96, 10672),
        "ip-10-5-23-12.us-west-2.compute.internal/llama-70b": Hardware("npu", "trainium1", 8, 32, 1520),
        "ip-10-5-22-11.us-west-2.compute.internal/llama-8b": Hardware("npu", "inferentia2", 1, 32, 190),
        "ip-10-5-26-15.us-west-2.compute.internal": CPU,
        "ip-10-5-24-13.us-west-2.compute.internal/qwen-32b": Hardware(
            "npu", "trainium2", 4, 24, 667, part="neuroncore"
        ),
    },
    "aks": {
        "aks-mi300x-12345678-vmss000004/deepseek": Hardware("gpu", "mi300x", 8, 192, 10456),
        "aks-a10-12345678-vmss000003/embed": Hardware("gpu", "a10", 1, 24, 125),
        "aks-h100-12345678-vmss000000/llama-405b": Hardware("gpu", "h100", 8, 80, 7912),
        "aks-system-12345678-vmss000006": CPU,
        "aks-rtx-12345678-vmss000005/mistral": Hardware("gpu", "rtx-pro-6000", 1, 96, 468),
        "aks-gpu-auto-7kx2p/mixtral": Hardware("gpu", "h100", 2, 94, 1670),
        "aks-a100-12345678-vmss000001/qwen-32b": Hardware("gpu", "a100", 1, 80, 312),
        "aks-t4spot-12345678-vmss000002/rerank": Hardware("gpu", "t4", 1, 16, 65, spot=True),
    },
    "onprem-gpu-operator": {
        "a100-mixed-01/embed": Hardware("gpu", "a100", 1, 5, 44.6, part="1g.5gb"),
        "l40s-mps-01/gemma": Hardware("gpu", "l40s", 1, 22.49, 181, part="1/2"),
        "dgx-h200-01/llama-405b": Hardware("gpu", "h200", 8, 140.4, 7912),
        "infra-01": CPU,
        "a100-single-01/phi": Hardware("gpu", "a100", 1, 10, 44.6, part="1g.10gb"),
        "a100-mixed-01/qwen-7b": Hardware("gpu", "a100", 1, 20, 133.7, part="3g.20gb"),
        "t4-shared-01/rerank": Hardware("gpu", "t4", 1, 3.75, 16.25, part="1/4"),
    },
    "amd": {
        "mi355x-01/deepseek": Hardware("gpu", "mi355x", 8, 288, 20128),
        "mi210-01/embed": Hardware("gpu", "mi210", 1, 64, 181),
        "mi300x-01/llama-70b": Hardware("gpu", "mi300x", 2, 192, 2614),
        "cpu-01": CPU,
        "mi250x-01/mixtral": Hardware("gpu", "mi250x", 8, 64, 1532),
        "mi300x-cpx-01/qwen-7b": Hardware("gpu", "mi300x", 1, 24, 163.4, part="cpx_nps4"),
    },
    "intel-gaudi": {
        "ip-10-8-30-5.ec2.internal/bert": Hardware("npu", "gaudi1", 8, 32, 480),
        "gaudi3-01/llama-70b": Hardware("npu", "gaudi3", 4, 128, 6712),
        "gaudi2-01/llama-8b": Hardware("npu", "gaudi2", 1, 96, 432),
        "xeon-01": CPU,
        "gaudi-unlabelled-01/mistral": Hardware("npu", "", 2, None, 0, missing="model memory TFLOPS"),
    },
    "intel-gpu": {
        "flex170-01/embed": Hardware("xpu", "flex-170", 1, 16, 125),
        "max1550-01/llama-70b": Hardware("xpu", "max-1550", 4, 128, 3356),
        "max1100-01/llama-8b": Hardware("xpu", "max-1100", 1, 48, 355),
        "xeon-02": CPU,
        "flex140-01/rerank": Hardware("xpu", "flex-140", 2, 6, 52.4),
    },
    "ascend": {
        "atlas-800-9000-01/bert": Hardware("npu", "", 1, None, 0, missing="memory TFLOPS"),
        "atlas-800t-a3-01/deepseek": Hardware("npu", "ascend-910c", 16, 64, 6016),
        "atlas-300i-duo-01/embed": Hardware("npu", "ascend-310p", 2, 48, 140),
        "taishan-01": CPU,
        "atlas-800t-a2-01/qwen-72b": Hardware("npu", "ascend-910b3", 8, 64, 2504),
        "atlas-800i-a2-01/qwen-7b": Hardware("npu", "ascend-910b4", 1, 32, 280),
    },
    "qualcomm": {
        "qaic-ultra-01/llama-70b": Hardware("npu", "", 4, None, 0, missing="model memory TFLOPS"),
        "ip-10-12-40-3.us-west-2.compute.internal/llama-8b": Hardware("npu", "cloud-ai-100-standard", 2, 16, 220),
        "xeon-03": CPU,
    },
    "rented-workstations": {
        "a4000-01/embed": Hardware("gpu", "rtx-a4000", 1, 15.99, 76.7),
        "rtx5000ada-01/gemma": Hardware("gpu", "rtx-5000-ada", 1, 31.99, 261.1),
        "rtxpro6000-01/gpt-oss": Hardware("gpu", "rtx-pro-6000", 1, 95.59, 468),
        "rtxpro6000-02/gpt-oss": Hardware("gpu", "rtx-pro-6000", 1, 95.59, 503.8),
        "g1a2b3c/llama-405b": Hardware("gpu", "h100", 8, 80, 7912),
        "rtx6000ada-01/llama-70b": Hardware("gpu", "rtx-6000-ada", 4, 47.99, 1456.8),
        "rtx3090-01/llama-8b": Hardware("gpu", "rtx-3090", 1, 24, 71),
        "cpu-02": CPU,
        "a6000-01/mistral": Hardware("gpu", "rtx-a6000", 1, 47.99, 154.8),
        "rtx4000ada-01/phi": Hardware("gpu", "rtx-4000-ada", 1, 20, 0, missing="TFLOPS"),
        "rtx5090-01/qwen-14b": Hardware("gpu", "rtx-5090", 1, 31.84, 209.5),
        "rtxpro5000-01/qwen-32b": Hardware("gpu", "rtx-pro-5000", 1, 47.79, 258),
        "rtx4090-01/qwen-7b": Hardware("gpu", "rtx-4090", 2, 23.99, 330.4),
        "a5000-01/rerank": Hardware("gpu", "rtx-a5000", 1, 23.99, 111.1),
    },
    "oci": {
        "oke-c1-mi300x-0/deepseek": Hardware("gpu", "mi300x", 8, 192, 10456),
        "oke-c1-a10-0/embed": Hardware("gpu", "a10", 1, 24, 125),
        "oke-c1-gb200-0/gpt-oss": Hardware("gpu", "gb200", 4, 186, 10000),
        "oke-c1-h100-0/llama-405b": Hardware("gpu", "h100", 8, 80, 7912),
        "oke-c1-e5-0": CPU,
        "oke-c1-a100-0/mixtral": Hardware("gpu", "a100", 2, 40, 624),
        "oke-c1-l40s-0/qwen-32b": Hardware("gpu", "l40s", 4, 48, 1448),
    },
    "unknown-devices": {
        "furiosa-01/llama-70b": Hardware("npu", "", 4, None, 0, missing="model memory TFLOPS"),
        "acme-01/llama-8b": Hardware("unknown", "", 2, None, 0, missing="accelerator memory TFLOPS"),
        "cpu-03": CPU,
        "plain-01/mistral": Hardware("gpu", "", 1, None, 0, missing="model memory TFLOPS"),
        "x9-01/qwen-72b": Hardware("gpu", "", 2, 128, 0, missing="TFLOPS"),
    },
}
"""By fleet, node and deployment."""


@cache
def objects_of(fleet):
    (path,) = (FLEETS / fleet).iterdir()
    items = yaml.safe_load(path.read_text())["items"]
    nodes = [item["metadata"]["name"] for item in items if item["kind"] == "Node"]
    return path, nodes, [item for item in items if item["kind"] == "Pod" and item["metadata"]["namespace"] == "llm"]


@cache
def report_on(fleet):
    path, _, pods = objects_of(fleet)
    endpoints = ",".join(f"{pod['metadata']['name']}={pod['status']['podIP']}:8000" for pod in pods)
    arguments = ["accelerators", f"--objects={path}", f"--endpoints={endpoints}", "--output=json"]
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output[result.output.index("{\n") :])


def hardware_of(found):
    tag = found["tag"]
    part, memory = tag["partition"], tag.get("memory_bytes")
    missing = [each["fact"] for each in found["missing"] if each["fact"] != "price"]
    return Hardware(
        tag["kind"],
        tag["model"],
        tag["count"],
        None if memory is None else pytest.approx(memory / GIB, abs=0.01),
        pytest.approx(tag["performance"]["fp16"] * part["compute_fraction"] * max(tag["count"], 1), rel=0.001),
        part["profile"] or (f"1/{part['sharers']}" if part["sharers"] > 1 else ""),
        tag["cost"]["spot"] is True,
        " ".join(missing),
    )


@pytest.mark.parametrize("fleet", EXPECTED)
def test_ome_14_hardware_of_a_whole_fleet_from_its_nodes_and_pods(fleet):
    _, nodes, pods = objects_of(fleet)
    report = report_on(fleet)
    assert (report["problems"], report["skipped"]) == ([], 0)
    found = {}
    for pod, each in zip(pods, report["endpoints"], strict=True):
        hardware, node = hardware_of(each), pod["spec"]["nodeName"]
        deployment = pod["metadata"]["name"].rsplit("-", 2)[0]
        found[node if hardware.kind == "cpu" else f"{node}/{deployment}"] = hardware
    assert found == EXPECTED[fleet]
    assert {name.partition("/")[0] for name in found} == set(nodes)


@pytest.mark.parametrize("fleet", EXPECTED)
def test_ome_7_price_of_every_endpoint_has_a_source_or_is_said_to_be_missing(fleet):
    for each in report_on(fleet)["endpoints"]:
        missing = [fact["fact"] for fact in each["missing"]]
        priced = "per_hour" in each["tag"]["provenance"]
        assert ("price" in missing) == (not priced and each["tag"]["kind"] != "cpu")


def test_ome_8_resource_of_an_unknown_vendor_is_named():
    problems = [problem for each in report_on("unknown-devices")["endpoints"] for problem in each["problems"]]
    (problem,) = problems
    assert problem.startswith("the pod requests acme.example/npu, a resource with an unknown vendor")
