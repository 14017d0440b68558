"""The names that an endpoint's accelerator goes by, as configurations write them."""

from epp.framework.accelerators import AcceleratorTag


def names_of(tag: AcceleratorTag) -> tuple[str, ...]:
    """Return the classes in lower case, the primary one first; where none matches, the model, such as `h100`."""
    names = tag.classes or ((tag.model,) if tag.model else ())
    return tuple(name.lower() for name in names)
