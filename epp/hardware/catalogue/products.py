# SPDX-License-Identifier: Apache-2.0
"""The built-in products, from `products.yaml`: figures of data sheets for whole devices, dense."""

from pathlib import Path

import msgspec

from epp.framework.accelerators.tag import AcceleratorKind
from epp.framework.quantities import GIB
from epp.hardware.catalogue.product import Product

_FAMILIES = (
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
)
_FEATURES = (
    ((10, 0), "fp4"),
    ((8, 9), "fp8"),
    ((8, 0), "bf16"),
    ((7, 0), "tensor-cores"),
    ((0, 0), "cuda"),
)


def family_of(compute_capability: tuple[int, ...]) -> str:
    """Return the family, as current labels spell it; empty before pascal."""
    return next((family for since, family in _FAMILIES if compute_capability >= since), "")


def features_of(compute_capability: tuple[int, ...]) -> frozenset[str]:
    """Return `cuda`, and those of `tensor-cores`, `bf16`, `fp8` and `fp4` that this generation has."""
    return frozenset(feature for since, feature in _FEATURES if compute_capability >= since)


class _Row(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    pattern: str
    memory: int
    """GiB."""
    source: str
    model: str = ""
    variant: str = ""
    family: str = ""
    bandwidth: float | None = None
    fp32: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    int4: float | None = None
    compute_units: int | None = None
    parts: int | None = None
    features: frozenset[str] = frozenset()


class _Group(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    vendor: str
    kind: AcceleratorKind
    products: tuple[_Row, ...]
    family: str = ""
    compute_capability: tuple[int, int] | None = None
    features: frozenset[str] = frozenset()


def _product(group: _Group, row: _Row) -> Product:
    capability = group.compute_capability
    return Product(
        name=row.name,
        model=row.model or row.name,
        vendor=group.vendor,
        pattern=row.pattern,
        variant=row.variant,
        family=row.family or group.family or (family_of(capability) if capability else ""),
        kind=group.kind,
        memory_bytes=row.memory * GIB,
        compute_capability=capability,
        fp32=row.fp32,
        fp16=row.fp16,
        fp8=row.fp8,
        int8=row.int8,
        int4=row.int4,
        bandwidth_gbps=row.bandwidth,
        features=group.features | row.features | (features_of(capability) if capability else frozenset()),
        compute_units=row.compute_units,
        parts=row.parts,
        source=row.source,
    )


_GROUPS = msgspec.yaml.decode(Path(__file__).with_name("products.yaml").read_bytes(), type=tuple[_Group, ...])
PRODUCTS = tuple(_product(group, row) for group in _GROUPS for row in group.products)
"""In order of preference for an ambiguous name: the usual variant of a model first."""
