# SPDX-License-Identifier: Apache-2.0
"""CPU time of accelerator filters with 1,000 endpoints: bounds, expressions, overrides in headers, spilling."""

from typing import Any

import numpy as np
from timing import microseconds, no_log_lines, quick, tell

from epp.framework import Headers, Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Device
from epp.framework.clock import SystemClock
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates

ENDPOINTS = 1000
GIB = 2**30


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


def main() -> None:
    """Print the figures."""
    rounds = 20 if quick() else 500
    no_log_lines()
    registry, clock = Registry(), SystemClock()
    generator = np.random.default_rng(1)
    waiting, usage = generator.integers(0, 8, ENDPOINTS).tolist(), generator.random(ENDPOINTS).tolist()
    pool = candidates(records={ACCELERATOR: fleet()}, waiting=waiting, kv_usage=usage)
    plain = Request("bench")
    bounds = {"minMemory": "80Gi", "requiredFeatures": ["fp8"], "maxCostPerHour": 20}

    def build(type_name: str, **parameters: object) -> Any:
        return registry.build(type_name, parameters, name="bench", clock=clock)

    accelerator = build("accelerator-filter", **bounds)
    expression = build("accelerator-filter", cel='device.driver == "gpu.nvidia.com"')
    layers = build("accelerator-selection-producer", allowRequestOverrides=True, defaults={"minMemory": 16})
    spill = build("cost-aware-spill", maxConcurrency=8)

    def overridden() -> None:
        request = Request("bench", headers=Headers([("x-epp-accelerator-min-memory", "20")]))
        layers.produce(request, pool)
        layers.admit(request, pool)
        accelerator.filter(request, pool)

    tell(
        {
            "filter-bounds": microseconds(lambda: accelerator.filter(plain, pool), rounds),
            "filter-expression": microseconds(lambda: expression.filter(plain, pool), rounds),
            "filter-override": microseconds(overridden, rounds),
            "filter-spill": microseconds(lambda: spill.filter(plain, pool), rounds),
        }
    )


if __name__ == "__main__":
    main()
