# SPDX-License-Identifier: Apache-2.0
"""Table of products with the figures of their data sheets: whole devices, dense; and of NVIDIA generations."""

import msgspec

from epp.accelerators.catalogue.product import Product
from epp.framework.accelerators.memory import GIB
from epp.framework.accelerators.tag import AcceleratorKind

# By least compute capability: families of NVIDIA, and the features that each generation added
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


class _Line:
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
        bandwidth_gbps: float,
        fp32: float | None,
        fp16: float,
        fp8: float | None = None,
        int8: float | None = None,
        int4: float | None = None,
        *,
        model: str = "",
        family: str = "",
        variant: str = "",
        features: str = "",
    ) -> Product:
        """Return one row: GiB, GB/s, TFLOPS of fp32, fp16 and fp8, TOPS of int8 and int4."""
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
        )


def _nvidia(capability: tuple[int, int], *rows: Product) -> tuple[Product, ...]:
    """Return the rows with compute capability, family and features of the generation."""
    return tuple(
        msgspec.structs.replace(
            row,
            family=family_of(capability),
            compute_capability=capability,
            features=row.features | features_of(capability),
        )
        for row in rows
    )


_GPU = _Line(vendor="nvidia", kind=AcceleratorKind.GPU)
_MIG = _Line(vendor="nvidia", kind=AcceleratorKind.GPU, features="nvlink mig")
_CDNA = _Line(vendor="amd", kind=AcceleratorKind.GPU, features="rocm matrix-cores bf16")
_MAX = _Line(vendor="intel", family="max_series", kind=AcceleratorKind.XPU, features="level-zero xmx bf16")
_FLEX = _Line(vendor="intel", family="flex_series", kind=AcceleratorKind.XPU, features="level-zero xmx bf16")
_GAUDI = _Line(vendor="intel", family="gaudi", kind=AcceleratorKind.NPU, features="bf16 fp8")
_TPU = _Line(vendor="google", kind=AcceleratorKind.TPU, features="xla bf16 int8")
_NEURON = _Line(vendor="aws", kind=AcceleratorKind.NPU, features="neuron bf16 fp8")

PRODUCTS: tuple[Product, ...] = (
    *_nvidia(
        (7, 0),
        _GPU("v100-sxm-16gb", "v100", 16, 900, 15.7, 125, model="v100", variant="sxm", features="nvlink"),
        _GPU("v100-sxm-32gb", "v100", 32, 900, 15.7, 125, model="v100", variant="sxm", features="nvlink"),
        _GPU("v100-pcie-16gb", "v100", 16, 900, 14, 112, model="v100", variant="pcie"),
        _GPU("v100-pcie-32gb", "v100", 32, 900, 14, 112, model="v100", variant="pcie"),
    ),
    *_nvidia((7, 5), _GPU("t4", "t4g?", 16, 320, 8.1, 65, None, 130, 260)),
    *_nvidia(
        (8, 0),
        _MIG("a100-sxm-40gb", "a100", 40, 1555, 19.5, 312, None, 624, 1248, model="a100", variant="sxm"),
        _MIG("a100-sxm-80gb", "a100", 80, 2039, 19.5, 312, None, 624, 1248, model="a100", variant="sxm"),
        _MIG("a100-pcie-40gb", "a100", 40, 1555, 19.5, 312, None, 624, 1248, model="a100", variant="pcie"),
        _MIG("a100-pcie-80gb", "a100", 80, 1935, 19.5, 312, None, 624, 1248, model="a100", variant="pcie"),
        _MIG("a30", "a30", 24, 933, 10.3, 165, None, 330, 661),
    ),
    *_nvidia(
        (8, 6),
        _GPU("a10", "a10", 24, 600, 31.2, 125, None, 250, 500),
        _GPU("a10g", "a10g", 24, 600, 35, 70, None, 140, 280),
        _GPU("a40", "a40", 48, 696, 37.4, 149.7, None, 299.3, 598.7, features="nvlink"),
        _GPU("rtx-a6000", "(rtx-?)?a6000", 48, 768, 38.7, 154.8, None, 309.7, 619.3, features="nvlink"),
    ),
    *_nvidia(
        (8, 9),
        _GPU("l4", "l4", 24, 300, 30.3, 121, 242, 242, 485),
        _GPU("l40", "l40", 48, 864, 90.5, 181, 362, 362, 724),
        _GPU("l40s", "l40s", 48, 864, 91.6, 362, 733, 733, 733),
        _GPU("rtx-6000-ada", "(rtx-?)?6000-?ada", 48, 960, 91.1, 364.2, 728.5, 728.5, 1457),
        _GPU("rtx-4090", "(rtx-?)?4090", 24, 1008, 82.6, 165.2, 330.3, 660.6, 1321.2),
    ),
    *_nvidia(
        (9, 0),
        # before h100, because of `H100-GH200-96GB`; the 480 GB of `GH200-480GB` are the memory of the CPU
        _MIG("gh200-96gb", "gh200", 96, 4000, 67, 989, 1979, 1979, model="gh200"),
        _MIG("gh200-144gb", "gh200", 144, 4900, 67, 989, 1979, 1979, model="gh200"),
        _MIG("h100-sxm-80gb", "h100", 80, 3350, 67, 989, 1979, 1979, model="h100", variant="sxm|hbm3"),
        _MIG("h100-sxm-96gb", "h100", 96, 3350, 67, 989, 1979, 1979, model="h100", variant="sxm"),
        _MIG("h100-pcie-80gb", "h100", 80, 2000, 51, 756, 1513, 1513, model="h100", variant="pcie"),
        _MIG("h100-nvl-94gb", "h100", 94, 3900, 60, 835, 1671, 1671, model="h100", variant="nvl"),
        _MIG("h200-sxm-141gb", "h200", 141, 4800, 67, 989, 1979, 1979, model="h200", variant="sxm"),
        _MIG("h200-nvl-141gb", "h200", 141, 4800, 60, 835, 1671, 1671, model="h200", variant="nvl"),
        _MIG("h20", "h20", 96, 4000, 44, 148, 296, 296),
    ),
    *_nvidia(
        (10, 0),
        _MIG("b200", "b200", 180, 8000, 75, 2250, 4500, 4500),
        _MIG("gb200", "gb200", 186, 8000, 80, 2500, 5000, 5000),
    ),
    _CDNA("mi210", "mi210", 64, 1638, 22.6, 181, None, 181, 181, family="cdna2"),
    # each of the two dies of an MI250 module is a device, so the size of a die comes first
    _CDNA("mi250-64gb", "mi250", 64, 1638, 22.6, 181, None, 181, 181, model="mi250", family="cdna2"),
    _CDNA("mi250-128gb", "mi250", 128, 3277, 45.3, 362, None, 362, 362, model="mi250", family="cdna2"),
    _CDNA("mi250x-64gb", "mi250x", 64, 1638, 23.9, 191.5, None, 191.5, 191.5, model="mi250x", family="cdna2"),
    _CDNA("mi250x-128gb", "mi250x", 128, 3277, 47.9, 383, None, 383, 383, model="mi250x", family="cdna2"),
    _CDNA("mi300x", "mi300x", 192, 5300, 163.4, 1307, 2614, 2614, family="cdna3", features="fp8"),
    _CDNA("mi325x", "mi325x", 256, 6000, 163.4, 1307, 2614, 2614, family="cdna3", features="fp8"),
    _CDNA("mi355x", "mi355x", 288, 8000, 157.3, 2516, 5033, 5033, family="cdna4", features="fp8 fp4"),
    _MAX("max-1550", "max-?1550", 128, 3277, 52, 839, None, 1678),
    _MAX("max-1100", "max-?1100", 48, 1229, 22, 355, None, 711),
    _FLEX("flex-170", "flex-?170", 16, 576, 16, 125, None, 250),
    _GAUDI("gaudi2", "gaudi-?2|hl-225[a-z]?", 96, 2450, None, 432, 865),
    _GAUDI("gaudi3", "gaudi-?3|hl-325[a-z]?", 128, 3700, None, 1835, 1835),
    _TPU("v4", "tpu-?v4|^v4", 32, 1228, None, 275, None, 275, family="tpu-v4"),
    _TPU("v5e", "(tpu-?)?v5e|tpu-v5-lite|v5litepod", 16, 819, None, 197, None, 394, family="tpu-v5e"),
    _TPU("v5p", "(tpu-?)?v5p", 95, 2765, None, 459, None, 918, family="tpu-v5p"),
    _TPU("v6e", "(tpu-?)?v6e", 32, 1640, None, 918, None, 1836, family="tpu-v6e"),
    _TPU("v7x", "(tpu-?)?v7x?|tpu-?7x?", 192, 7380, None, 2307, 4614, family="tpu-v7x", features="fp8"),
    _NEURON("inferentia2", "inferentia-?2|inf2", 32, 820, 47.5, 190, 190, 380, family="neuron-v2"),
    _NEURON("trainium1", "trainium-?1?|trn1n?", 32, 820, 47.5, 190, 190, 380, family="neuron-v2"),
    _NEURON("trainium2", "trainium-?2|trn2", 96, 2900, 181, 667, 1299, family="neuron-v3"),
)
"""In order of preference for an ambiguous name: the usual variant of a model first."""
