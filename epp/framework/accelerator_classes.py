"""Names of an endpoint's accelerator in configurations."""

from collections.abc import Mapping
from typing import TypeVar

from epp.framework.accelerators import AcceleratorTag

T = TypeVar("T")


def names_of(tag: AcceleratorTag) -> tuple[str, ...]:
    """Return the classes in lower case, the primary one first; without classes, the model, such as `h100`."""
    names = tag.classes or ((tag.model,) if tag.model else ())
    return tuple(name.lower() for name in names)


def entry_for(tag: AcceleratorTag, entries: Mapping[str, T]) -> T | None:
    """Return the entry, by lower-case name, for the first class that has one; failing that, for the model."""
    return next((entries[name] for name in (*names_of(tag), tag.model.lower()) if name in entries), None)
