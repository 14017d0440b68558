"""The GPU catalogue file of GPU allocators: a list of products with their prices, as more of our own catalogue."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from epp.accelerators.catalogue import CATALOGUE, Catalogue
from epp.accelerators.catalogue.product import Product
from epp.accelerators.mig import parse_mig_profile
from epp.framework.accelerators import Partition, Sharing
from epp.framework.memory import GIB
from epp.framework.quantities import exact_quantity


class _Template(msgspec.Struct, rename="camel"):
    template_id: str | int = ""
    name: str = ""
    memory_gigabytes: float = 0.0
    compute_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0


class _Entry(msgspec.Struct):
    model: str = ""
    full_model_name: str = msgspec.field(default="", name="fullModelName")
    vendor: str = ""
    cost_per_hour: str | float | None = msgspec.field(default=None, name="costPerHour")
    fp16: str | float | None = msgspec.field(default=None, name="fp16TFlops")
    partition_templates: list[_Template] = msgspec.field(default_factory=list, name="partitionTemplates")


def read_gpu_catalogue(data: Sequence[Mapping[str, object]], base: Catalogue = CATALOGUE) -> Catalogue:
    """Return the base catalogue with what a GPU catalogue file says.

    The file is a list of `{model, fullModelName, vendor, costPerHour, fp16TFlops, partitionTemplates, ...}`. An entry
    that names a known product gives it its price, its TFLOPS and its partitions; one that names several (`A100_SXM`:
    those of 40 and of 80 GB) leaves their TFLOPS alone; any other entry is a product of its own, found by both of its
    names. Raises ValueError for an entry of another shape.
    """
    entries = [_products(item, number, base) for number, item in enumerate(data)]
    # the entry that names fewer products knows them better, so it comes last
    return base.extended(product for products in sorted(entries, key=len, reverse=True) for product in products)


def _products(item: Mapping[str, object], number: int, base: Catalogue) -> list[Product]:
    try:
        entry = msgspec.convert(item, _Entry)
        per_hour, fp16 = _number(entry.cost_per_hour), _number(entry.fp16)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"GPU catalogue, entry {number}: {error}") from None
    names = [name for name in (entry.full_model_name, entry.model) if name]
    if not names:
        raise ValueError(f"GPU catalogue, entry {number}: neither model nor fullModelName is given")
    vendor = entry.vendor.lower()
    named_alike = next((meant for name in names if (meant := base.meant(name))), ())
    known = tuple(product for product in named_alike if vendor in {"", product.vendor})
    if not known:
        known = (_new(names, vendor, in_full=bool(named_alike)),)
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


def _new(names: list[str], vendor: str, *, in_full: bool) -> Product:
    """Return a product found by any of the names; in full with the vendor's, where another vendor has one alike."""
    words = [re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-") for name in names]
    if in_full:
        words = [word if word.startswith(f"{vendor}-") else f"{vendor}-{word}" for word in words]
    return Product(name=words[-1], model=words[-1], vendor=vendor, pattern="|".join(re.escape(word) for word in words))


def _partition(template: _Template, product: Product) -> Partition:
    profile = parse_mig_profile(template.name)
    compute = template.compute_percent / 100 or 1.0
    memory = compute
    if template.memory_gigabytes and product.memory_bytes:
        memory = min(template.memory_gigabytes * GIB / product.memory_bytes, 1.0)
    return Partition(
        kind=Sharing.NONE if profile is None else Sharing.MIG,
        profile=template.name if profile is None else profile.name,
        compute_slices=0 if profile is None else profile.compute_slices,
        compute_fraction=compute,
        memory_fraction=memory,
        media_extensions=profile is not None and profile.media_extensions,
    )


def _number(value: str | float | None) -> float | None:
    return None if value is None else float(exact_quantity(value))
