# SPDX-License-Identifier: Apache-2.0
"""Configurations in documents, which are sound as they are written, and do what the text says."""

import re
from pathlib import Path

import pytest

from epp.framework import Headers, Request, RequestBody
from epp.framework.accelerators.tag import FROZEN, AcceleratorTag, Device, Routability
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, run_scheduling

DOCUMENTS = Path(__file__).parents[3] / "docs"


def written(name: str, page: str) -> str:
    """Return the file of that name in a page."""
    block = rf"^```yaml\n# {re.escape(name)}\n(.*?)^```$"
    (text,) = re.findall(block, (DOCUMENTS / page).read_text(), re.DOTALL | re.MULTILINE)
    return text


TENSOR_FUSION = written("tensor-fusion.yaml", "kubernetes.md")
LATENCY = written("predicted-latency.yaml", "predicted-latency.md")


@pytest.mark.parametrize("text", [TENSOR_FUSION, LATENCY], ids=["tensor-fusion", "predicted-latency"])
def test_file_is_sound(warned, text):
    assert warned(text, head="") == []


def test_tensor_fusion_file_prefills_on_the_node_of_the_decode_server_nearest_to_its_gpu():
    def gpu(name, node, numa, **attributes):
        devices = (Device(id=name, node=node, numa=numa),)
        return AcceleratorTag(state=Routability.ROUTABLE, node=node, devices=devices, attributes=attributes)

    roles = ["decode", "prefill", "prefill", "prefill", "decode"]
    tags = [
        *(gpu("d", "a", 0), gpu("p1", "a", 1), gpu("p2", "a", 0), gpu("p3", "b", 0)),
        gpu("f", "a", 0, **{FROZEN: "disk"}),
    ]
    labels = [{"llm-d.ai/role": role} for role in roles]
    pool = candidates(labels=labels, records={ACCELERATOR: tags}, waiting=[0] * 5, running=[0] * 5)
    chosen = set()
    for seed in range(20):
        request = Request("r", RequestBody(prompt_tokens=4000), seed=seed)
        result = run_scheduling(TENSOR_FUSION, pool, request)
        chosen.add(result.profiles["prefill"].targets[0].name)
    assert chosen == {"e2"}


def test_file_of_predicted_latency_sends_a_request_where_it_meets_its_target_and_not_to_the_fastest():
    tags = [AcceleratorTag(model=model, classes=(model,), count=1) for model in ("h100", "cpu", "cpu")]
    headers = Headers([("x-llm-d-slo-ttft-ms", "8000")])
    picked = set()
    for seed in range(20):
        request = Request("r", RequestBody(model="m", prompt_tokens=1000), headers, seed=seed)
        pool = candidates(records={ACCELERATOR: tags}, in_flight_tokens=[0, 0, 4000], in_flight=[1, 1, 1])
        picked.add(run_scheduling(LATENCY, pool, request).targets[0].name)
    assert picked <= {"e0", "e1"}  # 1000 tokens take 5 s on a CPU, and 25 s behind 4000 others
