# SPDX-License-Identifier: Apache-2.0
"""Same snapshot, same seed, same configuration: same pick, in any process."""

import os
import subprocess
import sys

PICKS = """
from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock, Request, RequestBody
from epp.framework.registry import Registry
from epp.framework.testing import candidates

pool = candidates(
    waiting=[0, 0, 0, 0, 1, 2, 3, 0],
    kv_usage=[0.5] * 8,
    labels=[{"zone": zone, "rack": str(rack)} for rack, zone in enumerate("abcabcab")],
)
for picker in ("max-score-picker", "weighted-random-picker", "random-picker"):
    config = load_text(
        "apiVersion: llm-d.ai/v1alpha1\\nkind: EndpointPickerConfig\\n"
        "plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: lora-affinity-scorer},"
        " {type: label-selector-filter, parameters: {matchExpressions: [{key: zone, operator: In, values: [a, b]}]}},"
        f" {{type: {picker}, parameters: {{maxNumOfEndpoints: 2}}}}]"
    )
    scheduler = assemble(config, Builder(Registry(), ManualClock())).pipeline.scheduler
    for number in range(200):
        request = Request("always the same", RequestBody(model="m"), seed=number * 0x9E3779B97F4A7C15 % 2**64)
        print(picker, *(endpoint.name for endpoint in scheduler.schedule(request, pool).targets))
"""


def picks(hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.check_output([sys.executable, "-c", PICKS], env=environment, text=True).splitlines()


def test_pick_depends_on_the_seed_and_not_on_the_process():
    first = picks("1")
    assert first == picks("4242")
    assert len(first) == 3 * 200
    for picker in ("max-score-picker", "weighted-random-picker", "random-picker"):
        assert len({line for line in first if line.startswith(picker)}) > 2  # other seeds, other picks
