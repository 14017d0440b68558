# SPDX-License-Identifier: Apache-2.0
"""Rows of the tables of products."""

from epp.accelerators.catalogue.product import Product
from epp.framework.accelerators.memory import GIB
from epp.framework.accelerators.tag import AcceleratorKind


class Line:
    """Products of one vendor's family, row by row."""

    def __init__(self, *, vendor: str, family: str = "", kind: AcceleratorKind, features: str = "") -> None:
        self._vendor = vendor
        self._family = family
        self._kind = kind
        self._features = frozenset(features.split())

    def __call__(  # noqa: PLR0917  # rows of a table
        self,
        name: str,
        pattern: str,
        gigabytes: int,
        bandwidth_gbps: float | None,
        fp32: float | None = None,
        fp16: float | None = None,
        fp8: float | None = None,
        int8: float | None = None,
        int4: float | None = None,
        *,
        source: str,
        model: str = "",
        family: str = "",
        variant: str = "",
        features: str = "",
        compute_units: int | None = None,
        parts: int | None = None,
    ) -> Product:
        """Return one row: GiB, GB/s, TFLOPS of fp32, fp16 and fp8, TOPS of int8 and int4, and the document."""
        return Product(
            name=name,
            model=model or name,
            vendor=self._vendor,
            pattern=pattern,
            variant=variant,
            family=family or self._family,
            kind=self._kind,
            memory_bytes=gigabytes * GIB,
            fp32=fp32,
            fp16=fp16,
            fp8=fp8,
            int8=int8,
            int4=int4,
            bandwidth_gbps=bandwidth_gbps,
            features=self._features | frozenset(features.split()),
            compute_units=compute_units,
            parts=parts,
            source=source,
        )
