# SPDX-License-Identifier: Apache-2.0
"""GPU catalogue files of TensorFusion: products with prices, TFLOPS and partition templates, added to a catalogue."""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from epp.accelerators.catalogue.lookup import CATALOGUE, Catalogue
from epp.accelerators.catalogue.product import Product
from epp.accelerators.mig.profile import parse_mig_profile
from epp.framework.accelerators.memory import GIB
from epp.framework.accelerators.tag import Partition, Sharing
from epp.framework.quantities import exact_quantity

_MOST_DOLLARS, _MOST_TFLOPS = 10_000, 1_000_000
"""Of one device."""


class PartitionTemplate(msgspec.Struct, frozen=True, rename="camel"):
    """A partition of a product."""

    template_id: str | int = ""
    name: str = ""
    memory_gigabytes: Annotated[float, msgspec.Meta(ge=0, le=65_536)] = 0.0
    compute_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0


class GpuCatalogueEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of the file; fields that are not declared are ignored."""

    model: str = ""
    full_model_name: str = ""
    vendor: str = ""
    cost_per_hour: str | float | None = None
    fp16: str | float | None = msgspec.field(default=None, name="fp16TFlops")
    partition_templates: tuple[PartitionTemplate, ...] = ()


def with_gpu_catalogue(entries: Sequence[GpuCatalogueEntry], base: Catalogue = CATALOGUE) -> Catalogue:
    """Return the base catalogue with the entries of a GPU catalogue file.

    An entry with the name of a known product sets its price, TFLOPS and partitions; if it names several products, such
    as `A100_SXM` for 40 and 80 GB, their TFLOPS stay. Any other entry is a new product, found by both of its names.
    Raises ValueError for an entry without a name or with an invalid number.
    """
    found = [_products(entry, number, base) for number, entry in enumerate(entries)]
    # the entry that names fewer products is more specific, so it comes last
    return base.extended(product for products in sorted(found, key=len, reverse=True) for product in products)


def _products(entry: GpuCatalogueEntry, number: int, base: Catalogue) -> list[Product]:
    try:
        per_hour = _number("costPerHour", entry.cost_per_hour, _MOST_DOLLARS)
        fp16 = _number("fp16TFlops", entry.fp16, _MOST_TFLOPS)
    except ValueError as error:
        raise ValueError(f"gpuCatalogue, entry {number}: {error}") from None
    names = [name for name in (entry.full_model_name, entry.model) if name]
    if not names:
        raise ValueError(f"gpuCatalogue, entry {number}: add model or fullModelName")
    vendor = entry.vendor.lower()
    same_name = next((meant for name in names if (meant := base.meant(name))), ())
    known = tuple(product for product in same_name if vendor in {"", product.vendor})
    if not known:
        known = (_new(names, vendor, with_vendor=bool(same_name)),)
    return [
        msgspec.structs.replace(
            product,
            per_hour=product.per_hour if per_hour is None else per_hour,
            fp16=fp16 if fp16 and len(known) == 1 else product.fp16,
            partitions={str(one.template_id or one.name): _partition(one, product) for one in entry.partition_templates}
            or product.partitions,
        )
        for product in known
    ]


def _new(names: list[str], vendor: str, *, with_vendor: bool) -> Product:
    """Return a product found by any of the names, with the vendor if another vendor has a product of this name."""
    words = [re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-") for name in names]
    if with_vendor:
        words = [word if word.startswith(f"{vendor}-") else f"{vendor}-{word}" for word in words]
    return Product(name=words[-1], model=words[-1], vendor=vendor, pattern="|".join(re.escape(word) for word in words))


def _partition(template: PartitionTemplate, product: Product) -> Partition:
    profile = parse_mig_profile(template.name)
    compute = template.compute_percent / 100 or 1.0
    memory = compute
    if template.memory_gigabytes and product.memory_bytes:
        memory = min(template.memory_gigabytes * GIB / product.memory_bytes, 1.0)
    return Partition(
        kind=Sharing.VGPU if profile is None else Sharing.MIG,
        profile=template.name if profile is None else profile.name,
        compute_slices=0 if profile is None else profile.compute_slices,
        compute_fraction=compute,
        memory_fraction=memory,
        media_extensions=profile is not None and profile.media_extensions,
    )


def _number(field: str, value: str | float | None, most: int) -> float | None:
    """Return the number; raises ValueError for one below 0 or above `most`."""
    if value is None:
        return None
    number = exact_quantity(value)
    if not 0 <= number <= most:
        written = repr(value) if isinstance(value, str) else f"{value:.10g}"
        raise ValueError(f"{field} is {written:.60}: write a number from 0 to {most}")
    return float(number)
