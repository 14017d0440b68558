"""One product of the catalogue, and what it says of an endpoint."""

from collections.abc import Mapping

import msgspec

from epp.accelerators.facts import Facts, Rank
from epp.framework.accelerators import AcceleratorKind, Partition, Sharing

GIB = 2**30


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product; numbers of one whole device, dense (without sparsity); None for not known."""

    name: str
    """Unique: `a100-sxm-80gb`."""
    model: str
    """`a100`."""
    vendor: str
    pattern: str
    """Regular expression of the model in a text whose words are lower case and joined by `-`."""
    variant: str = ""
    """Regular expression that tells this one from others of the model: `sxm`."""
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
    per_hour: float | None = None
    partitions: Mapping[str, Partition] = msgspec.field(default_factory=dict)
    """How a GPU catalogue file says that it can be divided, by template id."""

    def facts(self, source: str = "", partition: Partition | None = None) -> Facts:
        """Return what is known of an endpoint that has this product, or the given part of it.

        Rank CATALOGUE; the source is `catalogue/<name>` unless given. The memory is the part's, everything else the
        whole device's; the partition itself is not repeated. A MIG slice has neither nvlink nor mig.
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
        )
