# SPDX-License-Identifier: Apache-2.0
"""GPUs of AMD; `parts` are the dies (XCDs) into which mode CPX divides a device."""

from epp.accelerators.catalogue.product import Product
from epp.accelerators.catalogue.rows import Line
from epp.framework.accelerators.tag import AcceleratorKind

_CDNA = Line(vendor="amd", kind=AcceleratorKind.GPU, features="rocm matrix-cores bf16")
_RDNA = Line(vendor="amd", kind=AcceleratorKind.GPU, features="rocm bf16")
_MI200 = "AMD Instinct MI200 Series Accelerator Datasheet"

PRODUCTS: tuple[Product, ...] = (
    _CDNA(
        "mi100", "mi100", 32, 1229, 23.1, 184.6, None, 184.6, 184.6,
        family="cdna", compute_units=120, source="AMD Instinct MI100 Accelerator Brochure",
    ),
    _CDNA(
        "mi210", "mi210", 64, 1638, 22.6, 181, None, 181, 181,
        family="cdna2", compute_units=104, source="AMD Instinct MI210 Accelerator Brochure",
    ),
    # each of the two dies of an MI250 module is a device, so the size of a die comes first
    _CDNA(
        "mi250-64gb", "mi250", 64, 1638, 22.6, 181, None, 181, 181,
        model="mi250", family="cdna2", compute_units=104, source=_MI200,
    ),
    _CDNA(
        "mi250-128gb", "mi250", 128, 3277, 45.3, 362, None, 362, 362,
        model="mi250", family="cdna2", compute_units=208, source=_MI200,
    ),
    _CDNA(
        "mi250x-64gb", "mi250x", 64, 1638, 23.9, 191.5, None, 191.5, 191.5,
        model="mi250x", family="cdna2", compute_units=110, source=_MI200,
    ),
    _CDNA(
        "mi250x-128gb", "mi250x", 128, 3277, 47.9, 383, None, 383, 383,
        model="mi250x", family="cdna2", compute_units=220, source=_MI200,
    ),
    _CDNA(
        "mi300a", "mi300a", 128, 5300, 122.6, 980.6, 1961.2, 1961.2,
        family="cdna3", features="fp8", compute_units=228, parts=6, source="AMD Instinct MI300A APU Data Sheet",
    ),
    _CDNA(
        "mi300x", "mi300x", 192, 5300, 163.4, 1307, 2614, 2614,
        family="cdna3", features="fp8", compute_units=304, parts=8, source="AMD Instinct MI300X Accelerator Data Sheet",
    ),
    # no data sheet is public
    _CDNA(
        "mi308x", "mi308x", 192, None,
        family="cdna3", features="fp8", compute_units=80, parts=4, source="AMD GPU driver (device 74a2)",
    ),
    _CDNA(
        "mi325x", "mi325x", 256, 6000, 163.4, 1307, 2614, 2614,
        family="cdna3", features="fp8", compute_units=304, parts=8, source="AMD Instinct MI325X GPU Data Sheet",
    ),
    _CDNA(
        "mi350x", "mi350x", 288, 8000, 144.2, 2306.9, 4613.7, 4613.7,
        family="cdna4", features="fp8 fp4", compute_units=256, parts=8, source="AMD Instinct MI350X GPU Data Sheet",
    ),
    _CDNA(
        "mi355x", "mi355x", 288, 8000, 157.3, 2516, 5033, 5033,
        family="cdna4", features="fp8 fp4", compute_units=256, parts=8, source="AMD Instinct MI355X GPU Data Sheet",
    ),
    _RDNA(
        "radeon-pro-w7900", "w7900", 48, 864, 61.3, 122.6, None, 122.6, 245.2,
        family="rdna3", compute_units=96, source="AMD Radeon PRO W7900 Data Sheet",
    ),
    # of its 28 GB Azure, which rents it, gives 24
    _RDNA(
        "radeon-pro-v710", "radeon-pro-v710|^v710", 24, 448, 27.7, 55.3, None, 55.3, 110.6,
        family="rdna3", compute_units=54,
        source="AMD Radeon PRO V710 Product Specifications; memory: Azure NVads V710 v5",
    ),
    _RDNA(
        "radeon-ai-pro-r9700", "radeon-ai-pro-r9700|^r9700", 32, 640, 47.8, 191, 383, 383, 766,
        family="rdna4", features="fp8", compute_units=64, source="AMD Radeon AI PRO R9700 Data Sheet",
    ),
    _RDNA(
        "radeon-pro-v520", "radeon-pro-v520|^v520", 8, 512, 7.4, 14.7,
        family="rdna", compute_units=36, source="AMD Radeon Pro V520 Data Sheet",
    ),
)  # fmt: skip
"""In order of preference for an ambiguous name."""
