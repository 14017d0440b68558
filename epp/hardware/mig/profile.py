# SPDX-License-Identifier: Apache-2.0
"""MIG profiles, parsed from their names."""

import re

import msgspec

from epp.framework.quantities import GIB, canonical_mig_name

_PARTS = re.compile(r"(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<memory>\d+)gb(?P<attributes>.*)")
_ATTRIBUTE = re.compile(r"[+.]|(?=-)")


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of slice."""

    compute_slices: int
    """Of the GPU instance: 3 in `3g.20gb`."""
    memory_gb: int
    compute_instance_slices: int | None = None
    """Of the compute instance: 1 in `1c.3g.20gb`; None if it has the whole GPU instance."""
    attributes: tuple[str, ...] = ()
    """In order of the name: `me`, `all`, `gfx`; `-me` without media extensions."""

    @property
    def media_extensions(self) -> bool:
        """Whether it has the media extensions of the GPU, which only one slice can have."""
        return "me" in self.attributes

    @property
    def instance_name(self) -> str:
        """Canonical name of the GPU instance: `3g.20gb`, `1g.5gb+me`."""
        added = ".".join(name for name in self.attributes if not name.startswith("-"))
        removed = "".join(name for name in self.attributes if name.startswith("-"))
        return f"{self.compute_slices}g.{self.memory_gb}gb{added and '+' + added}{removed}"

    @property
    def name(self) -> str:
        """Canonical name: that of the GPU instance, or `1c.3g.20gb` for a compute instance in it."""
        return (f"{self.compute_instance_slices}c." if self.compute_instance_slices else "") + self.instance_name

    @property
    def memory_bytes(self) -> int:
        """Memory by the name, whose GB are GiB."""
        return self.memory_gb * GIB


def parse_mig_profile(text: str) -> MigProfile | None:
    """Return the profile of a name in any spelling that `canonical_mig_name` accepts; None for any other text."""
    match = _PARTS.fullmatch(canonical_mig_name(text) or "")
    if match is None:
        return None
    return MigProfile(
        compute_slices=int(match["compute"]),
        memory_gb=int(match["memory"]),
        compute_instance_slices=int(match["instance"]) if match["instance"] else None,
        attributes=tuple(name for name in _ATTRIBUTE.split(match["attributes"]) if name),
    )
