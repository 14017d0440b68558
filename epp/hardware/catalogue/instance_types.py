# SPDX-License-Identifier: Apache-2.0
"""Accelerators of cloud machine types, from `instance_types.yaml`: `p5.48xlarge` has eight H100."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec

from epp.framework.accelerators.tag import Partition, Sharing


class InstanceType(msgspec.Struct, frozen=True):
    """The accelerators of one machine type."""

    product: str
    """A name that the catalogue finds: `h100-sxm-80gb`, `h100`."""
    count: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    """Devices of a machine."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Of each device that the machine has, as a virtual GPU."""

    @property
    def partition(self) -> Partition | None:
        """The part of a device; None for whole ones."""
        if self.share == 1:
            return None
        return Partition(kind=Sharing.VGPU, compute_fraction=self.share, memory_fraction=self.share)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: Mapping[str, Mapping[int, tuple[str, ...]]]
    shares: Mapping[str, Mapping[int, tuple[str, ...]]]


def _types(table: _Table) -> Iterator[tuple[str, InstanceType]]:
    for product, by_count in table.devices.items():
        for count, names in by_count.items():
            yield from ((name.lower(), InstanceType(product, count)) for name in names)
    for product, by_sharers in table.shares.items():
        for sharers, names in by_sharers.items():
            yield from ((name.lower(), InstanceType(product, 1, 1 / sharers)) for name in names)


INSTANCE_TYPES: Mapping[str, InstanceType] = MappingProxyType(
    dict(_types(msgspec.yaml.decode(Path(__file__).with_name("instance_types.yaml").read_bytes(), type=_Table)))
)
"""By name in lower case: those of AWS, Azure, Google Cloud and Oracle."""


def find_instance_type(name: str, overrides: Mapping[str, InstanceType] | None = None) -> InstanceType | None:
    """Return the accelerators of a machine type in any case, the overrides first; None for an unknown one."""
    key = name.lower().removeprefix("ml.")
    given = {known.lower(): value for known, value in (overrides or {}).items()}
    return given.get(name.lower()) or given.get(key) or INSTANCE_TYPES.get(key)
