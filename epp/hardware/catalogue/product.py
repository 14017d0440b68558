# SPDX-License-Identifier: Apache-2.0
"""Products of the catalogue, and the facts that follow from one."""

from collections.abc import Mapping

import msgspec

from epp.framework.accelerators.tag import AcceleratorKind, Partition, Sharing
from epp.hardware.facts import Facts, Rank


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product; figures of one whole device, dense (without sparsity); None if unknown."""

    name: str
    """Unique: `a100-sxm-80gb`."""
    model: str
    """`a100`."""
    vendor: str
    pattern: str
    """Regular expression for the model, in lower-case words joined by `-`."""
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
    features: frozenset[str] = frozenset()
    compute_units: int | None = None
    """Multiprocessors of NVIDIA, compute units of AMD."""
    parts: int | None = None
    """Parts that are allocated one by one: dies in mode CPX, tiles, NeuronCores, AI cores."""
    source: str = ""
    """Title of the document with the figures."""
    per_hour: float | None = None
    partitions: Mapping[str, Partition] = msgspec.field(default_factory=dict)
    """By id of the partition template, from a GPU catalogue file."""
    sources: Mapping[str, str] = {}
    """Source of the fields that are not those of the data sheet: `gpus.yaml: T4`."""

    def facts(self, source: str = "", partition: Partition | None = None) -> Facts:
        """Return the facts for an endpoint with this product, or with the given partition of it.

        Of rank CATALOGUE; the default source is `catalogue/<name>`. The memory is that of the partition, all other
        figures are those of the whole device; `partition` is not set. A MIG slice has neither nvlink nor mig.
        """
        part = partition or Partition()
        sliced = part.kind is Sharing.MIG
        return Facts(
            source=source or f"catalogue/{self.name}",
            rank=Rank.CATALOGUE,
            kind=self.kind,
            vendor=self.vendor,
            family=self.family or None,
            model=self.model,
            product=self.name,
            memory_bytes=None if self.memory_bytes is None else int(self.memory_bytes * part.memory_fraction),
            compute_capability=self.compute_capability,
            features=self.features - {"nvlink", "mig"} if sliced else self.features,
            fp32=self.fp32,
            fp16=self.fp16,
            fp8=self.fp8,
            int8=self.int8,
            int4=self.int4,
            bandwidth_gbps=self.bandwidth_gbps,
            per_hour=self.per_hour,
            sources=self.sources,
        )
