# SPDX-License-Identifier: Apache-2.0
"""Generations of NVIDIA's GPUs: families and features by compute capability."""

import msgspec

from epp.accelerators.catalogue.product import Product

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


def of_generation(compute_capability: tuple[int, int], *rows: Product) -> tuple[Product, ...]:
    """Return the rows with compute capability, family and features of the generation."""
    return tuple(
        msgspec.structs.replace(
            row,
            family=family_of(compute_capability),
            compute_capability=compute_capability,
            features=row.features | features_of(compute_capability),
        )
        for row in rows
    )
