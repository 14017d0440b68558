# SPDX-License-Identifier: Apache-2.0
"""Configurations in documents, which are sound as they are written, and do what the text says."""

import re
from pathlib import Path

from epp.framework import Request, RequestBody
from epp.framework.accelerators.tag import FROZEN, AcceleratorTag, Device, Routability
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, run_scheduling

PAGE = Path(__file__).parents[3] / "docs" / "kubernetes.md"


def written(name: str) -> str:
    """Return the file of that name in the page."""
    (text,) = re.findall(rf"^```yaml\n# {re.escape(name)}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return text


def test_tensor_fusion_file_is_sound(warned):
    found = warned(written("tensor-fusion.yaml"), head="")
    assert found == []


def test_tensor_fusion_file_prefills_on_the_node_of_the_decode_server_nearest_to_its_gpu():
    def gpu(name, node, numa, **attributes):
        return AcceleratorTag(
            state=Routability.ROUTABLE,
            node=node,
            devices=(Device(id=name, node=node, numa=numa),),
            attributes=attributes,
        )

    roles = ["decode", "prefill", "prefill", "prefill", "decode"]
    tags = [
        gpu("d", "a", 0),
        gpu("p1", "a", 1),
        gpu("p2", "a", 0),
        gpu("p3", "b", 0),
        gpu("f", "a", 0, **{FROZEN: "disk"}),
    ]
    pool = candidates(
        labels=[{"llm-d.ai/role": role} for role in roles],
        records={ACCELERATOR: tags},
        waiting=[0, 0, 0, 0, 0],
        running=[0, 0, 0, 0, 0],
    )
    chosen = set()
    for seed in range(20):
        request = Request("r", RequestBody(prompt_tokens=4000), seed=seed)
        result = run_scheduling(written("tensor-fusion.yaml"), pool, request)
        chosen.add(result.profiles["prefill"].targets[0].name)
    assert chosen == {"e2"}
