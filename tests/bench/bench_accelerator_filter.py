# SPDX-License-Identifier: Apache-2.0
"""CPU time of the accelerator filters over 1,000 endpoints: bounds, expressions, overrides in headers, spilling.

python tests/bench/bench_accelerator_filter.py
"""

import time
from collections.abc import Callable

import numpy as np

from epp.framework import Headers, Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Device
from epp.framework.clock import SystemClock
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates

ENDPOINTS = 1000
GIB = 2**30
ROUNDS = 1000


def fleet() -> list[AcceleratorTag]:
    return [
        AcceleratorTag(
            kind=AcceleratorKind.GPU,
            vendor="nvidia",
            family="hopper",
            model="h100",
            count=1 + number % 8,
            memory_bytes=80 * GIB if number % 3 else 40 * GIB,
            compute_capability=(9, 0),
            features=frozenset({"fp8", "nvlink"}),
            cost=Cost(per_hour=4.0),
            devices=(Device(id=f"GPU-{number}"),),
            attributes={"device/driver": "gpu.nvidia.com"},
        )
        for number in range(ENDPOINTS)
    ]


def show(what: str, call: Callable[[int], object]) -> None:
    call(0)
    samples = []
    for sample in range(5):
        started = time.process_time()
        for number in range(ROUNDS):
            call(sample * ROUNDS + number)
        samples.append((time.process_time() - started) / ROUNDS * 1e6)
    print(f"{what:48} {min(samples):8.1f}")


def main() -> None:
    """Print a table in microseconds."""
    registry, clock = Registry(), SystemClock()
    generator = np.random.default_rng(1)
    waiting, usage = generator.integers(0, 8, ENDPOINTS), generator.random(ENDPOINTS)
    pool = candidates(records={ACCELERATOR: fleet()}, waiting=waiting, kv_usage=usage)
    plain = Request("bench")

    def build(type_name: str, **parameters: object):
        return registry.build(type_name, parameters, name="bench", clock=clock)

    bounds = {"minMemory": "80Gi", "requiredFeatures": ["fp8"], "maxCostPerHour": 20}
    accelerator = build("accelerator-filter", **bounds)
    expression = build("accelerator-filter", cel='device.driver == "gpu.nvidia.com"')
    layers = build("accelerator-selection-producer", allowRequestOverrides=True, defaults={"minMemory": 16})
    spill = build("cost-aware-spill", maxConcurrency=8)

    def override(number: int) -> Request:
        request = Request("bench", headers=Headers([("x-epp-accelerator-min-memory", f"{20 + number / 1000}")]))
        layers.produce(request, pool)
        layers.admit(request, pool)
        return request

    show("bounds", lambda _: accelerator.filter(plain, pool))
    show("expression", lambda _: expression.filter(plain, pool))
    show("selection for a request without headers", lambda _: layers.produce(plain, pool))
    plain = Request("bench")
    show("override in a header, and bounds", lambda _: accelerator.filter(override(0), pool))
    show("the same, another value in each request", lambda number: accelerator.filter(override(number), pool))
    show("spill", lambda _: spill.filter(plain, pool))


if __name__ == "__main__":
    main()
