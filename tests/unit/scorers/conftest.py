# SPDX-License-Identifier: Apache-2.0
"""Three whole accelerators with round figures, and a way to score endpoints that have some."""

import pytest

from epp.framework import ManualClock, Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Performance
from epp.framework.quantities import GIB
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates


@pytest.fixture
def h100():
    return AcceleratorTag(
        kind=AcceleratorKind.GPU,
        model="h100",
        classes=("nvidia-h100",),
        count=1,
        memory_bytes=80 * GIB,
        bandwidth_gbps=3000,
        performance=Performance(fp32=67, fp16=1979, int8=3958, int4=7916),
        cost=Cost(per_hour=4, spot_per_hour=2, per_million_tokens=100, tier="high"),
    )


@pytest.fixture
def a100():
    return AcceleratorTag(
        kind=AcceleratorKind.GPU,
        model="a100",
        classes=("nvidia-a100",),
        count=1,
        memory_bytes=40 * GIB,
        bandwidth_gbps=1555,
        performance=Performance(fp32=19, fp16=312, int8=624),
        cost=Cost(per_hour=2, spot_per_hour=1, per_million_tokens=50, tier="medium"),
    )


@pytest.fixture
def t4():
    return AcceleratorTag(
        kind=AcceleratorKind.GPU,
        model="t4",
        classes=("nvidia-t4",),
        count=1,
        memory_bytes=16 * GIB,
        bandwidth_gbps=320,
        performance=Performance(fp32=8, fp16=65, int8=130),
        cost=Cost(per_hour=1, spot_per_hour=0, per_million_tokens=20, tier="low"),
    )


@pytest.fixture
def build():
    """Make a plugin out of parameters as files give them."""

    def built(plugin, **parameters):
        registry = Registry({})
        registry.register(plugin)
        return registry.build(plugin.plugin_type, parameters, name=plugin.plugin_type, clock=ManualClock())

    return built


@pytest.fixture
def scores(build):
    """Score endpoints that have these accelerators."""

    def scored(plugin, tags, request=None, *, columns=None, reported=None, **parameters):
        pool = candidates(records={ACCELERATOR: tags}, reported=reported, **(columns or {}))
        return build(plugin, **parameters).score(request or Request("r"), pool).tolist()

    return scored
