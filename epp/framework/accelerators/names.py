# SPDX-License-Identifier: Apache-2.0
"""Names of an endpoint's accelerator in configurations."""

from collections.abc import Mapping
from typing import TypeVar

from epp.framework.accelerators.tag import AcceleratorTag

T = TypeVar("T")


def names_of(tag: AcceleratorTag) -> tuple[str, ...]:
    """Return the classes in lower case, the primary one first; without classes, the model, such as `h100`."""
    names = tag.classes or ((tag.model,) if tag.model else ())
    return tuple(name.lower() for name in names)


def entry_for(tag: AcceleratorTag, entries: Mapping[str, T]) -> T | None:
    """Return the entry, by lower-case name, for the first class that has one; failing that, for the model."""
    return next((entries[name] for name in (*names_of(tag), tag.model.lower()) if name in entries), None)


def limit_for(tag: AcceleratorTag, name: str, entries: Mapping[str, object], general: object) -> float | None:
    """Return the limit of that name from the tag's entry, or from `general` if the entry has none."""
    own: float | None = getattr(entry_for(tag, entries), name, None)
    common: float | None = getattr(general, name)
    return common if own is None else own
