# SPDX-License-Identifier: Apache-2.0
"""The scheduler is a library: it can be had without any protocol."""

import subprocess
import sys

BLOCKED = ("grpc", "httpx", "kubernetes", "aiohttp", "google.protobuf", "pydantic", "structlog")

PROGRAM = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None  # importing it raises ImportError
import epp.framework, epp.framework.testing, epp.framework.registry
import epp.routing.scheduling.scheduler, epp.routing.datastore
from epp.framework import Request
from epp.framework.registry import Registry
from epp.framework.clock import ManualClock
from epp.framework.testing import candidates
from epp.routing.scheduling.profile import Profile, WeightedScorer
from epp.routing.scheduling.scheduler import Scheduler
build = lambda name: Registry().build(name, {{}}, name=name, clock=ManualClock())
handler = build("single-profile-handler")
profile = Profile("default", (), (WeightedScorer(build("queue-scorer")),), build("max-score-picker"))
result = Scheduler({{"default": profile}}, handler, handler).schedule(Request("r"), candidates(waiting=[3, 0, 5]))
print(result.targets[0].name)
"""


def test_gie_1_core_schedules_with_grpc_httpx_and_kubernetes_blocked():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert run.stdout == "e1\n"  # the endpoint with nothing waiting
