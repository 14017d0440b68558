# SPDX-License-Identifier: Apache-2.0
"""Canonical names of MIG profiles."""

import re

_NAME = re.compile(
    r"(?:^|[/-])(?:mig-)?(?P<size>(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]{0,3}gb)"
    r"(?P<attributes>(?:(?:\+|\.|-plus-)(?!shared)[a-z]+|-me)*)(?:[-.]shared)?$"
)
_ATTRIBUTE = re.compile(r"-plus-|[+.]|(?=-me)")


def canonical_mig_name(text: str) -> str | None:
    """Return `3g.20gb`, `1g.5gb+me` or `1c.3g.20gb` for any spelling; None for any other text.

    Spellings are the bare name, resource names (`nvidia.com/mig-1g.5gb.me`, `mig.das.com/1g.5gb-plus-me`,
    `instaslice.redhat.com/mig-3g.20gb`) and products (`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`), all of these also with
    the suffix `-SHARED` or `.shared`. `1g.5gb-me` is a profile without media extensions.
    """
    found = _NAME.search(text.strip().lower())
    if found is None:
        return None
    attributes = [name for name in _ATTRIBUTE.split(found["attributes"]) if name]
    added = ".".join(name for name in attributes if not name.startswith("-"))
    removed = "".join(name for name in attributes if name.startswith("-"))
    return f"{found['size']}{added and '+' + added}{removed}"


def compute_slices(name: str) -> int | None:
    """Return the compute slices of a canonical name: 3 of `3g.20gb`, 1 of `1c.3g.20gb`."""
    found = re.match(r"(\d+)[cg]\.", name)
    return int(found[1]) if found else None
