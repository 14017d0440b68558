# SPDX-License-Identifier: Apache-2.0
"""GPUs and Gaudi accelerators of Intel; `parts` are the tiles of a GPU."""

from epp.accelerators.catalogue.product import Product
from epp.accelerators.catalogue.rows import Line
from epp.framework.accelerators.tag import AcceleratorKind

_MAX = Line(vendor="intel", family="max_series", kind=AcceleratorKind.XPU, features="level-zero xmx bf16")
_FLEX = Line(vendor="intel", family="flex_series", kind=AcceleratorKind.XPU, features="level-zero xmx bf16")
_ARC = Line(vendor="intel", family="arc_pro", kind=AcceleratorKind.XPU, features="level-zero xmx bf16")
_GAUDI = Line(vendor="intel", family="gaudi", kind=AcceleratorKind.NPU, features="bf16")
_GENERATIONS = "Intel Gaudi 3 AI Accelerator, Hot Chips 2024: Gaudi Product Generations"
_XE2 = "Intel Arc Pro B-Series Product Specifications"
_MAX_BRIEF = "Intel Data Center GPU Max Series Technical Overview"
_FLEX_BRIEF = "Intel Data Center GPU Flex Series Product Brief"

PRODUCTS: tuple[Product, ...] = (
    _MAX("max-1550", "max-?1550", 128, 3277, 52, 839, None, 1678, parts=2, source=_MAX_BRIEF),
    _MAX("max-1100", "max-?1100", 48, 1229, 22, 355, None, 711, parts=1, source=_MAX_BRIEF),
    _FLEX("flex-170", "flex-?170", 16, 576, 16, 125, None, 250, parts=1, source=_FLEX_BRIEF),
    # figures of one of the two GPUs of the card
    _FLEX("flex-140", "flex-?140", 6, None, 4, 26.2, None, 52.5, parts=1, source=_FLEX_BRIEF),
    # fp16 is half of int8: a core of Xe2 does 2048 operations of fp16 in a clock, and 4096 of int8
    _ARC("arc-pro-b70", "arc-?(tm-)?pro-?b70", 32, 608, 22.9, 183.5, None, 367, source=_XE2),
    _ARC("arc-pro-b65", "arc-?(tm-)?pro-?b65", 32, 608, 12.3, 98.3, None, 197, source=_XE2),
    _ARC("arc-pro-b60", "arc-?(tm-)?pro-?b60", 24, 456, 12.3, 98.3, None, 197, source=_XE2),
    _ARC("arc-pro-b50", "arc-?(tm-)?pro-?b50", 16, 224, 10.7, 85.2, None, 170, source=_XE2),
    _GAUDI("gaudi2", "gaudi-?2|hl-225[a-z]?", 96, 2460, None, 432, 865, features="fp8", source=_GENERATIONS),
    # fp16 has the figure of bf16, for which Gaudi 3 is built (459 TFLOPS with fp16), and as fast as fp8;
    # 1835 are of the clock that was planned first
    _GAUDI(
        "gaudi3", "gaudi-?3|hl-325[a-z]?|hl-338", 128, 3700, None, 1678, 1678,
        features="fp8", source="Intel Gaudi 3 AI Accelerator White Paper (2025)",
    ),
    _GAUDI("gaudi1", "gaudi-?1|hl-20[05]", 32, 900, None, 60, source=_GENERATIONS),
)  # fmt: skip
"""In order of preference for an ambiguous name."""
