# SPDX-License-Identifier: Apache-2.0
"""GPU catalogue files of TensorFusion: products with prices, TFLOPS and partition templates, added to a catalogue."""

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec

from epp.framework.accelerators.tag import Partition, Sharing
from epp.framework.quantities import GIB, exact_quantity
from epp.hardware.catalogue.lookup import CATALOGUE, Catalogue
from epp.hardware.catalogue.product import Product
from epp.hardware.files.rows import read_rows
from epp.hardware.mig.profile import parse_mig_profile
from epp.kube.objects.base import convert
from epp.runtime.followed_files import ParsedFile

_FORM = "write a list of entries, such as - {model: T4, costPerHour: 0.53}"
_WRITTEN = {"cost_per_hour": "costPerHour", "fp16": "fp16TFlops"}
_MOST = {"cost_per_hour": 1e4, "fp16": 1e6}


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


def read_gpu_catalogue(content: bytes, path: Path) -> ParsedFile[tuple[GpuCatalogueEntry, ...]]:  # noqa: ARG001  a parser
    """Return the entries of a file, without the parts that have mistakes; raises ValueError for one without a list."""
    found = read_rows(content.decode("utf-8-sig"), form=_FORM)
    problems = list(found.problems)
    entries: list[GpuCatalogueEntry] = []
    for row in found.rows:
        try:
            entry = convert(row.fields, GpuCatalogueEntry)
        except ValueError as error:
            problems.append(f"line {row.line}: {error}")
            continue
        if not (entry.full_model_name or entry.model):
            problems.append(f"line {row.line}: the entry has no name: add model or fullModelName")
            continue
        impossible = {name: text for name in _MOST if (text := _impossible(name, row.fields.get(_WRITTEN[name])))}
        problems.extend(f"line {row.line}: {text}" for text in impossible.values())
        entries.append(msgspec.structs.replace(entry, **dict.fromkeys(impossible)))
    return ParsedFile(tuple(entries), len(entries), tuple(problems))


def _impossible(name: str, value: object) -> str:
    """Return what is wrong with a figure; empty for nothing."""
    try:
        number = _number(value) if isinstance(value, str | int | float) else None
    except ValueError:
        number = inf
    if number is None or 0 <= number <= _MOST[name]:
        return ""
    return f"{_WRITTEN[name]} is {value!r:.40}: write a number from 0 to {_MOST[name]:,.0f}"


def with_gpu_catalogue(
    entries: Sequence[GpuCatalogueEntry], base: Catalogue = CATALOGUE, *, file: str = ""
) -> Catalogue:
    """Return the base catalogue with the entries of a GPU catalogue file, whose name is for provenance.

    An entry with the name of a known product sets its price, TFLOPS and partitions; if it names several products, such
    as `A100_SXM` for 40 and 80 GB, their TFLOPS stay. Any other entry is a new product, found by both of its names.
    """
    found = [_products(entry, base, file) for entry in entries]
    # the entry that names fewer products is more specific, so it comes last
    return base.extended(product for products in sorted(found, key=len, reverse=True) for product in products)


def _products(entry: GpuCatalogueEntry, base: Catalogue, file: str) -> list[Product]:
    names = [name for name in (entry.full_model_name, entry.model) if name]
    vendor = entry.vendor.lower()
    same_name = next((meant for name in names if (meant := base.meant(name))), ())
    known = tuple(product for product in same_name if vendor in {"", product.vendor})
    if not known:
        known = (_new(names, vendor, with_vendor=bool(same_name)),)
    source = f"{file}: {entry.model or entry.full_model_name}"
    return [_with_figures(product, entry, source, alone=len(known) == 1) for product in known]


def _with_figures(product: Product, entry: GpuCatalogueEntry, source: str, *, alone: bool) -> Product:
    per_hour, fp16 = _number(entry.cost_per_hour), _number(entry.fp16)
    given = {"per_hour": per_hour, "fp16": fp16 if fp16 and alone else None}
    known = {name: number for name, number in given.items() if number is not None}
    return msgspec.structs.replace(
        product,
        per_hour=known.get("per_hour", product.per_hour),
        fp16=known.get("fp16", product.fp16),
        partitions={str(one.template_id or one.name): _partition(one, product) for one in entry.partition_templates}
        or product.partitions,
        sources={**product.sources, **dict.fromkeys(known, source)},
    )


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


def _number(value: str | float | None) -> float | None:
    return None if value is None else float(exact_quantity(value))
