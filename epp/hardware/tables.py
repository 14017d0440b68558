# SPDX-License-Identifier: Apache-2.0
"""Tables that the tagger reads from files: products of a GPU catalogue, and a price list."""

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec

from epp.framework.accelerators.tag import Partition, Sharing
from epp.framework.plain_yaml import read_rows
from epp.framework.plugin_status import InputState
from epp.framework.quantities import GIB, exact_quantity
from epp.hardware.catalogue import CATALOGUE, Catalogue, Product
from epp.hardware.mig import parse_mig_profile
from epp.hardware.prices import Price, PriceList, read_prices
from epp.kube.objects.base import convert
from epp.runtime.followed_files import LastGoodFile, ParsedFile

_FORM = "write a list of entries, such as - {model: T4, costPerHour: 0.53}"
_WRITTEN = {"cost_per_hour": "costPerHour", "fp16": "fp16TFlops"}
_MOST = {"cost_per_hour": 1e4, "fp16": 1e6}
_Prices = LastGoodFile[tuple[Price, ...]]


class PartitionTemplate(msgspec.Struct, frozen=True, rename="camel"):
    template_id: str | int = ""
    name: str = ""
    memory_gigabytes: Annotated[float, msgspec.Meta(ge=0, le=65_536)] = 0.0
    compute_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0


class GpuCatalogueEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of the file; other fields are ignored."""

    model: str = ""
    full_model_name: str = ""
    vendor: str = ""
    cost_per_hour: str | float | None = None
    fp16: str | float | None = msgspec.field(default=None, name="fp16TFlops")
    partition_templates: tuple[PartitionTemplate, ...] = ()


def read_gpu_catalogue(content: bytes, path: Path) -> ParsedFile[tuple[GpuCatalogueEntry, ...]]:  # noqa: ARG001  signature of parsers
    """Return the valid parts of the entries of a file; raises ValueError for a file without a list."""
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
    try:
        number = _number(value) if isinstance(value, str | int | float) else None
    except ValueError:
        number = inf
    if number is None or 0 <= number <= _MOST[name]:
        return ""
    return f"{_WRITTEN[name]} is {value!r:.40}: write a number from 0 to {_MOST[name]:,.0f}"


def with_gpu_catalogue(entries: Sequence[GpuCatalogueEntry], *, file: str = "") -> Catalogue:
    """Return the built-in catalogue with the entries of a GPU catalogue file; `file` is for provenance.

    An entry with the name of a known product sets its price, TFLOPS and partitions. TFLOPS are not set if the name
    matches several products, such as `A100_SXM` for 40 and 80 GB. Any other entry is a new product with both names.
    """
    found = [_products(entry, file) for entry in entries]
    # an entry that matches fewer products is more specific, so it comes last
    return CATALOGUE.extended(product for products in sorted(found, key=len, reverse=True) for product in products)


def _products(entry: GpuCatalogueEntry, file: str) -> list[Product]:
    names = [name for name in (entry.full_model_name, entry.model) if name]
    vendor = entry.vendor.lower()
    same_name = next((meant for name in names if (meant := CATALOGUE.meant(name))), ())
    known = tuple(product for product in same_name if vendor in {"", product.vendor})
    if not known:
        known = (_new(names, vendor, with_vendor=bool(same_name)),)
    given = {"per_hour": _number(entry.cost_per_hour), "fp16": _number(entry.fp16) or None}
    figures = {name: given[name] for name in given if given[name] is not None and (name != "fp16" or len(known) == 1)}
    sources = dict.fromkeys(figures, f"{file}: {entry.model or entry.full_model_name}")
    return [
        msgspec.structs.replace(
            product,
            partitions={str(one.template_id or one.name): _partition(one, product) for one in entry.partition_templates}
            or product.partitions,
            sources={**product.sources, **sources},
            **figures,
        )
        for product in known
    ]


def _new(names: list[str], vendor: str, *, with_vendor: bool) -> Product:
    """Return a product with these names, prefixed by the vendor if another vendor has a product of this name."""
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


_Products = LastGoodFile[tuple[GpuCatalogueEntry, ...]]


class Tables(msgspec.Struct, frozen=True):
    """Catalogue and prices in effect; `after` returns the next state."""

    products: _Products | None = None
    price_file: _Prices | None = None
    catalogue: Catalogue = CATALOGUE
    prices: PriceList = PriceList()

    @staticmethod
    def first(gpu_catalogue: str, prices: str) -> "Tables":
        """Read the optional files for the first time; raises ValueError for an unreadable or useless file."""
        return _tables(
            LastGoodFile.first(gpu_catalogue, "gpuCatalogue", read_gpu_catalogue) if gpu_catalogue else None,
            LastGoodFile.first(prices, "prices", read_prices) if prices else None,
        )

    @property
    def files(self) -> Sequence[_Products | _Prices]:
        return [file for file in (self.products, self.price_file) if file is not None]

    @property
    def has_prices(self) -> bool:
        parsed = None if self.products is None else self.products.parsed
        entries = () if parsed is None else parsed.value
        return bool(self.prices) or any(each.cost_per_hour is not None for each in entries)

    @property
    def inputs(self) -> InputState:
        prices = self.price_file
        return InputState(
            tuple(problem for file in self.files for problem in file.problems),
            {str(file.path): file.rejected for file in self.files},
            remarks=() if prices is None else tuple(f"{prices.path}: {each}" for each in self.prices.remarks),
        )

    def after(self, now: float) -> "Tables":
        """Read the files at a monotonic time; return the next state, or this one without a change."""
        products = None if self.products is None else self.products.after(now)
        prices = None if self.price_file is None else self.price_file.after(now)
        if products is self.products and prices is self.price_file:
            return self
        return _tables(products, prices)


def _tables(products: _Products | None, price_file: _Prices | None) -> "Tables":
    catalogue, prices = CATALOGUE, PriceList()
    if products is not None and products.parsed is not None:
        catalogue = with_gpu_catalogue(products.parsed.value, file=products.path.name)
    if price_file is not None and price_file.parsed is not None:
        prices = PriceList(price_file.parsed.value, price_file.path.name, catalogue)
    return Tables(products, price_file, catalogue, prices)
