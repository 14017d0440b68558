# SPDX-License-Identifier: Apache-2.0
"""MIG profiles and placements that a GPU cannot have; of an unknown GPU, nothing is impossible."""

from collections.abc import Iterator
from functools import lru_cache

from epp.framework.quantities import GIB
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.catalogue.product import Product
from epp.hardware.mig.layouts import MIG_GPUS, MigGpu, SliceLayout
from epp.hardware.mig.profile import MigProfile, parse_mig_profile

_MOST_SLOTS = 8
_ROUNDING = 0.07
"""Of the memory in a name: drivers round it differently, `1g.23gb` or `1g.24gb`."""


@lru_cache(maxsize=1024)  # a fleet has few products, and many pods
def profile_fault(
    text: str, product: str = "", memory_bytes: int | None = None, catalogue: Catalogue = CATALOGUE
) -> str:
    """Return why no slice of the product has that profile, with the remedy; empty where one can, or may.

    The fault begins like `is '3g.40gb', ...`. `memory_bytes` are those of the whole GPU, where they are known.
    """
    profile = parse_mig_profile(text)
    if profile is None:
        return f"is {text!r:.60}: write a MIG profile such as 3g.20gb"
    if (profile.compute_instance_slices or 0) > profile.compute_slices:
        return f"is {text!r:.60}, more compute slices than the slice has: write {profile.instance_name}"
    if not product:
        return ""
    meant = catalogue.meant(product, memory_bytes)
    gpus = tuple(_divisions(meant))
    if not meant or any(layout_like(gpu, profile) for gpu in gpus):
        return ""
    if gpus:
        names = ", ".join(dict.fromkeys(name for gpu in gpus for name in gpu.layouts))
        return f"is {text!r:.60}, which {product!r:.60} cannot have: write one of {names}"
    return "" if any(map(_may_be_divided, meant)) else f"is {text!r:.60}, but {product!r:.60} has no MIG: leave it out"


def placement_fault(start: int, size: int, profile: MigProfile | None, gpu: MigGpu | None) -> str:
    """Return why a slice of the profile cannot be at these memory slots, with the remedy; empty where it can."""
    slots = _MOST_SLOTS if gpu is None else gpu.memory_slots
    shown = f"is {{size: {size}, start: {start}}}"
    if start < 0 or size < 1 or start + size > slots:
        return f"{shown}, beyond the {slots} memory slots of the GPU: write slots that it has"
    layout = None if gpu is None or profile is None else layout_like(gpu, profile)
    if layout is None or (size == layout.size and start in layout.starts):
        return ""
    starts = ", ".join(map(str, layout.starts))
    return f"{shown}, where no {layout.profile} can be: write size {layout.size} and start {starts}"


def layout_like(gpu: MigGpu, profile: MigProfile) -> SliceLayout | None:
    """Return the layout of the profile, whose name may have the memory rounded in another way."""
    for layout in gpu.layouts.values():
        is_near = abs(profile.memory_gb - layout.memory_gb) <= _ROUNDING * layout.memory_gb
        if profile.compute_slices == layout.compute_slices and is_near:
            return layout
    return None


def _divisions(products: tuple[Product, ...]) -> Iterator[MigGpu]:
    for each in products:
        name = f"{each.model}-{(each.memory_bytes or 0) // GIB}gb"
        if name in MIG_GPUS:
            yield MIG_GPUS[name]


def _may_be_divided(product: Product) -> bool:
    """Return whether the product may have MIG as far as is known: of NVIDIA's, some since compute capability 8.0."""
    if product.vendor != "nvidia":
        return product.vendor == ""
    capability = product.compute_capability
    return capability is None or capability == (8, 0) or capability >= (9, 0)
