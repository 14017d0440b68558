# SPDX-License-Identifier: Apache-2.0
"""GeForce cards of NVIDIA; figures of fp16 and fp8 are those that accumulate in fp32, as model servers do."""

from epp.accelerators.catalogue.generations import of_generation
from epp.accelerators.catalogue.product import Product
from epp.accelerators.catalogue.rows import Line
from epp.framework.accelerators.tag import AcceleratorKind

_CARD = Line(vendor="nvidia", kind=AcceleratorKind.GPU)

_DESKTOP = "(?!-?(super|ti|laptop|mobile|max-?q))"

_GA102 = "NVIDIA Ampere GA102 GPU Architecture Whitepaper"
_ADA = "NVIDIA Ada GPU Architecture Whitepaper"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture Whitepaper"

PRODUCTS: tuple[Product, ...] = (
    *of_generation(
        (8, 6),
        _CARD("rtx-3090-ti", "(rtx-?)?3090-?ti", 24, 1008, 40, 80, None, 320, 640, source=_ADA),
        _CARD("rtx-3090", f"(rtx-?)?3090{_DESKTOP}", 24, 936, 35.6, 71, None, 284, 568, source=_GA102),
        _CARD("rtx-3080", f"(rtx-?)?3080{_DESKTOP}", 10, 760, 29.8, 59.5, None, 238, 476, source=_GA102),
    ),
    *of_generation(
        (8, 9),
        _CARD("rtx-4090", f"(rtx-?)?4090{_DESKTOP}", 24, 1008, 82.6, 165.2, 330.3, 660.6, 1321.2, source=_ADA),
        _CARD("rtx-4080", f"(rtx-?)?4080{_DESKTOP}", 16, 717, 48.7, 97.5, 194.9, 389.9, 779.8, source=_ADA),
    ),
    *of_generation(
        (12, 0),
        _CARD("rtx-5090", f"(rtx-?)?5090{_DESKTOP}", 32, 1792, 104.8, 209.5, 419, 838, source=_RTX_BLACKWELL),
        _CARD("rtx-5080", f"(rtx-?)?5080{_DESKTOP}", 16, 960, 56.3, 112.6, 225.1, 450.2, source=_RTX_BLACKWELL),
        _CARD(
            "rtx-5070-ti", "(rtx-?)?5070-?ti(?!-?(laptop|mobile))", 16, 896, 43.9, 87.9, 175.8, 351.5,
            source=_RTX_BLACKWELL,
        ),
    ),
)  # fmt: skip
"""In order of preference for an ambiguous name."""
