# SPDX-License-Identifier: Apache-2.0
"""Products and cloud machine types with the figures of their data sheets, and their lookup by any name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec

from epp.framework.accelerators.tag import HOST_GBPS, AcceleratorKind, Partition, Sharing
from epp.framework.quantities import GIB, NOMINAL_TOLERANCE
from epp.hardware.facts.merge import Facts, Rank

_FAMILIES = (
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
)
_FEATURES = (((10, 0), "fp4"), ((8, 9), "fp8"), ((8, 0), "bf16"), ((7, 0), "tensor-cores"), ((0, 0), "cuda"))
T = TypeVar("T")

_SHARED_FIELDS = (
    *("kind", "vendor", "model", "compute_capability", "fp32", "fp16", "fp8", "int8", "int4", "bandwidth_gbps"),
    *("per_hour", "sources"),
)
"""Fields of a product that are facts as they are."""
_CACHE_SIZE = 1024
"""Cached lookups: a fleet has few products and looks them up for each endpoint."""
_LONGEST_NAME = 256
_SEPARATORS = re.compile(r"[^a-z0-9.+]+")
_PART = re.compile(r"-(mig-[0-9].*|shared)$")
_SIZE = re.compile(r"(?<![a-z0-9.])([0-9]+)gi?b?(?![a-z0-9])")
_MODE = re.compile(r"(spx|dpx|tpx|qpx|cpx)(?:[_-]?nps[1248])?", re.IGNORECASE)
_DEVICES = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
_USUAL_DIES = 8


def read_table(name: str, cls: type[T]) -> T:
    """Return the content of a YAML file in `data/`."""
    return msgspec.yaml.decode((Path(__file__).parent / "data" / name).read_bytes(), type=cls)


class Product(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One product. Figures are those of one whole device without sparsity; None if unknown."""

    name: str
    """Unique: `a100-sxm-80gb`."""
    model: str
    """`a100`."""
    vendor: str
    pattern: str
    """Regular expression for the model name, in lower-case words joined by `-`."""
    variant: str = ""
    """Regular expression for this variant of the model: `sxm`."""
    family: str = ""
    kind: AcceleratorKind = AcceleratorKind.GPU
    memory_bytes: int | None = None
    compute_capability: tuple[int, ...] | None = None
    fp32: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    int4: float | None = None
    bandwidth_gbps: float | None = None
    host_gbps: float | None = None
    features: frozenset[str] = frozenset()
    compute_units: int | None = None
    """Multiprocessors (NVIDIA) or compute units (AMD)."""
    parts: int | None = None
    """Separately allocatable parts: dies in mode CPX, tiles, NeuronCores, AI cores."""
    source: str = ""
    """Title of the data sheet."""
    per_hour: float | None = None
    partitions: Mapping[str, Partition] = msgspec.field(default_factory=dict)
    """Keyed by id of the partition template, from a GPU catalogue file."""
    sources: Mapping[str, str] = {}
    """Source of fields that are not from the data sheet: `gpus.yaml: T4`."""

    def facts(self, source: str = "", partition: Partition | None = None) -> Facts:
        """Return the facts, of rank CATALOGUE, for an endpoint with this product or a partition of it.

        The default source is `catalogue/<name>`. The memory is that of the partition; all other figures are those of
        the whole device. A MIG slice has neither feature `nvlink` nor `mig`.
        """
        part = partition or Partition()
        sliced = part.kind is Sharing.MIG
        return Facts(
            source=source or f"catalogue/{self.name}",
            rank=Rank.CATALOGUE,
            family=self.family or None,
            product=self.name,
            memory_bytes=None if self.memory_bytes is None else int(self.memory_bytes * part.memory_fraction),
            features=self.features - {"nvlink", "mig"} if sliced else self.features,
            attributes={} if self.host_gbps is None else {HOST_GBPS: self.host_gbps},
            **{name: getattr(self, name) for name in _SHARED_FIELDS},
        )


def family_of(compute_capability: tuple[int, ...]) -> str:
    """Return the family in the spelling of current labels; empty for generations before pascal."""
    return next((family for since, family in _FAMILIES if compute_capability >= since), "")


def features_of(compute_capability: tuple[int, ...]) -> frozenset[str]:
    return frozenset(feature for since, feature in _FEATURES if compute_capability >= since)


def _products(group: Mapping[str, Any]) -> Iterator[Product]:
    """Yield the products of a group of the table; fields of the group apply to all of them."""
    shared = {name: value for name, value in group.items() if name != "products"}
    capability = tuple(group.get("computeCapability", ()))
    derived = {"family": family_of(capability)} if capability else {}
    for row in group["products"]:
        given = {"model": row["name"], **derived, **shared, **row}
        given["memoryBytes"] = given.pop("memory") * GIB
        given["bandwidthGbps"], given["hostGbps"] = given.pop("bandwidth", None), given.pop("host", None)
        features = {*shared.get("features", ()), *row.get("features", ())}
        given["features"] = features | (features_of(capability) if capability else set())
        yield msgspec.convert(given, Product)


PRODUCTS = tuple(product for group in read_table("products.yaml", list[dict[str, Any]]) for product in _products(group))
"""Ordered by preference for an ambiguous name: the usual variant of a model comes first."""


def same_size(nominal_bytes: float, actual_bytes: float) -> bool:
    """Return whether a device of this nominal size may report that many bytes, for GB as GiB or as 10^9 bytes."""
    return any(
        abs(actual_bytes - nominal) <= NOMINAL_TOLERANCE * nominal
        for nominal in (nominal_bytes, nominal_bytes * 10**9 / GIB)
    )


class Catalogue:
    def __init__(self, products: Iterable[Product] = PRODUCTS) -> None:
        self._products = tuple(products)
        self._by_name = {product.name: product for product in self._products}
        self._patterns = [
            (product, re.compile(rf"(?<![a-z0-9])(?:{product.pattern})(?![a-z0-9])")) for product in self._products
        ]
        self._cached_search = lru_cache(_CACHE_SIZE)(self._search)

    def find(self, text: str, memory_bytes: int | None = None) -> Product | None:
        """Return the product with a name; None if unknown.

        A model with several sizes is identified by the size in the text, then by `memory_bytes` of a whole device, then
        by the order of the table.
        """
        return next(iter(self.meant(text, memory_bytes)), None)

    def meant(self, text: str, memory_bytes: int | None = None) -> tuple[Product, ...]:
        """Return all products that match a name, the most likely first."""
        return self._cached_search(text, memory_bytes) if len(text) <= _LONGEST_NAME else ()

    def _search(self, text: str, memory_bytes: int | None) -> tuple[Product, ...]:
        words = _words(text)
        if words in self._by_name:
            return (self._by_name[words],)
        matches = [product for product, pattern in self._patterns if pattern.search(words)]
        matches = [product for product in matches if product.model == matches[0].model]
        sizes = {int(size) * GIB for size in _SIZE.findall(words)}
        fitting = [product for product in matches if product.memory_bytes in sizes]
        if not fitting and memory_bytes:
            fitting = _nearest(matches, memory_bytes)
        fitting = fitting or matches
        variants = [product for product in fitting if product.variant and re.search(product.variant, words)]
        return tuple(variants or fitting)

    def extended(self, products: Iterable[Product]) -> "Catalogue":
        """Return a catalogue with more products, which replace those of the same name; new ones come first."""
        added = {product.name: product for product in products}
        new = [product for name, product in added.items() if name not in self._by_name]
        return Catalogue([*new, *(added.get(product.name, product) for product in self._products)])


def _words(text: str) -> str:
    """Return lower-case words joined by `-`, without suffixes of slices and shared devices."""
    words = _SEPARATORS.sub("-", text.strip().lower()).strip("-")
    while (shorter := _PART.sub("", words)) != words:
        words = shorter
    return words


def _nearest(products: list[Product], memory_bytes: int) -> list[Product]:
    sized = [product for product in products if product.memory_bytes and same_size(product.memory_bytes, memory_bytes)]
    distances = {product.name: abs((product.memory_bytes or 0) - memory_bytes) for product in sized}
    return [product for product in sized if distances[product.name] == min(distances.values())]


CATALOGUE = Catalogue()


def devices_of_mode(mode: str, product: Product | None) -> int | None:
    """Return the number of logical devices for each device in an AMD mode; None for an invalid mode."""
    match = _MODE.fullmatch(mode.strip())
    if match is None:
        return None
    dies = (product.parts if product is not None else None) or _USUAL_DIES
    return min(_DEVICES.get(match[1].lower(), dies), dies)


def partition_of_mode(mode: str, product: Product | None) -> Partition | None:
    """Return the share of one logical device: the whole device for mode SPX, None for an invalid mode."""
    number = devices_of_mode(mode, product)
    if number is None or number == 1:
        return None if number is None else Partition()
    return Partition(
        kind=Sharing.AMD, profile=mode.strip().lower(), compute_fraction=1 / number, memory_fraction=1 / number
    )


class InstanceType(msgspec.Struct, frozen=True):
    """Accelerators of one machine type."""

    product: str
    """Any name of a product in the catalogue: `h100-sxm-80gb`, `h100`."""
    count: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    """Devices of one machine."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Share of each device, as a virtual GPU."""
    network: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 0.0
    """Gbit/s of the network of one machine; 0 for unknown."""

    @property
    def partition(self) -> Partition | None:
        """Partition of a device; None for whole devices."""
        if self.share == 1:
            return None
        return Partition(kind=Sharing.VGPU, compute_fraction=self.share, memory_fraction=self.share)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: Mapping[str, Mapping[int, tuple[str, ...]]]
    shares: Mapping[str, Mapping[int, tuple[str, ...]]]
    network: Mapping[int, tuple[str, ...]]


def _types(table: _Table) -> Iterator[tuple[str, InstanceType]]:
    network = {name: speed for speed, names in table.network.items() for name in names}
    for product, by_count in table.devices.items():
        for count, names in by_count.items():
            yield from ((name.lower(), InstanceType(product, count, network=network.get(name, 0))) for name in names)
    for product, by_sharers in table.shares.items():
        for sharers, names in by_sharers.items():
            yield from ((name.lower(), InstanceType(product, 1, 1 / sharers)) for name in names)


INSTANCE_TYPES: Mapping[str, InstanceType] = MappingProxyType(dict(_types(read_table("instance_types.yaml", _Table))))
"""Machine types of AWS, Azure, Google Cloud and Oracle by lower-case name."""


def find_instance_type(name: str, overrides: Mapping[str, InstanceType] | None = None) -> InstanceType | None:
    """Return the accelerators of a machine type, ignoring case; overrides take precedence. None if unknown."""
    key = name.lower().removeprefix("ml.")
    given = {known.lower(): value for known, value in (overrides or {}).items()}
    return given.get(name.lower()) or given.get(key) or INSTANCE_TYPES.get(key)
