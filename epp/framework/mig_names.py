"""One spelling for the names of MIG profiles."""

import re

_NAME = re.compile(r"((?:[1-9]\d*c\.)?[1-9]\d*g\.[1-9]\d*gb)((?:[+-][a-z]+)(?:\.[a-z]+)*)?")
_PLACE = re.compile(r"^(?:.*/)?(?:(?:.*-)?mig-)?")


def canonical_mig_name(text: str) -> str | None:
    """Return `3g.20gb`, `1g.5gb+me` or `1c.3g.20gb` for any spelling; None for what is no MIG profile.

    Spellings are the bare name, resource names (`nvidia.com/mig-1g.5gb.me`, `mig.das.com/1g.5gb-plus-me`,
    `instaslice.redhat.com/mig-3g.20gb`) and products (`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`, also with `-SHARED`).
    """
    name = _PLACE.sub("", text.strip().lower(), count=1).removesuffix("-shared").replace("-plus-", "+")
    size, gb, attributes = name.partition("gb")
    if attributes.startswith("."):
        attributes = "+" + attributes[1:]
    whole = size + gb + attributes
    return whole if _NAME.fullmatch(whole) else None


def compute_slices(name: str) -> int | None:
    """Return the compute slices of a canonical name: 3 of `3g.20gb`, 1 of `1c.3g.20gb`."""
    found = re.match(r"(\d+)[cg]\.", name)
    return int(found[1]) if found else None
