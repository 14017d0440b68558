# SPDX-License-Identifier: Apache-2.0
"""Three whole accelerators with round figures, and scores of endpoints that have some."""

from epp.framework import Request
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost, Performance
from epp.framework.quantities import GIB
from epp.framework.snapshot import CORE_COLUMNS
from epp.framework.testing import candidates
from tests.support.plugins import built

H100 = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    model="h100",
    classes=("nvidia-h100",),
    count=1,
    memory_bytes=80 * GIB,
    bandwidth_gbps=3000,
    performance=Performance(fp32=67, fp16=1979, int8=3958, int4=7916),
    cost=Cost(per_hour=4, spot_per_hour=2, per_million_tokens=100, tier="high"),
)
A100 = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    model="a100",
    classes=("nvidia-a100",),
    count=1,
    memory_bytes=40 * GIB,
    bandwidth_gbps=1555,
    performance=Performance(fp32=19, fp16=312, int8=624),
    cost=Cost(per_hour=2, spot_per_hour=1, per_million_tokens=50, tier="medium"),
)
T4 = AcceleratorTag(
    kind=AcceleratorKind.GPU,
    model="t4",
    classes=("nvidia-t4",),
    count=1,
    memory_bytes=16 * GIB,
    bandwidth_gbps=320,
    performance=Performance(fp32=8, fp16=65, int8=130),
    cost=Cost(per_hour=1, spot_per_hour=0, per_million_tokens=20, tier="low"),
)
_COLUMNS = {column.name for column in CORE_COLUMNS}


def scores(plugin, tags=(), request=None, *, records=None, reported=None, **more):
    """Return the scores of endpoints with these accelerators; `more` are columns and parameters, by their names."""
    columns = {name: more.pop(name) for name in _COLUMNS & more.keys()}
    pool = candidates(accelerators=tags, records=records, reported=reported, **columns)
    return built(plugin, more).score(request or Request("r"), pool).tolist()
