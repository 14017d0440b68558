"""What the name of a MIG profile says."""

import re

import msgspec

from epp.accelerators.catalogue.product import GIB
from epp.framework.mig_names import canonical_mig_name

_PARTS = re.compile(r"(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<memory>\d+)gb(?P<attributes>.*)")
_ATTRIBUTE = re.compile(r"[+.]|(?=-)")


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of slice."""

    compute_slices: int
    """Of the GPU instance: 3 in `3g.20gb`."""
    memory_gb: int
    compute_instance_slices: int | None = None
    """Of the compute instance within it: 1 in `1c.3g.20gb`; None where it has all."""
    attributes: tuple[str, ...] = ()
    """In the order written: `me`, `all`, `gfx`; `-me` where media extensions are left out."""

    @property
    def media_extensions(self) -> bool:
        """Whether it has media engines that only some of a GPU's slices can have."""
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
        """The memory its name says, its GB being GiB."""
        return self.memory_gb * GIB


def parse_mig_profile(text: str) -> MigProfile | None:
    """Return the profile of a name, a resource or a product, spelled as `canonical_mig_name` knows; None for none."""
    match = _PARTS.fullmatch(canonical_mig_name(text) or "")
    if match is None:
        return None
    return MigProfile(
        compute_slices=int(match["compute"]),
        memory_gb=int(match["memory"]),
        compute_instance_slices=int(match["instance"]) if match["instance"] else None,
        attributes=tuple(name for name in _ATTRIBUTE.split(match["attributes"]) if name),
    )
