# SPDX-License-Identifier: Apache-2.0
"""GPUs of NVIDIA for data centres and workstations; data sheets give most tensor figures with sparsity, here halved."""

from epp.accelerators.catalogue.generations import of_generation
from epp.accelerators.catalogue.product import Product
from epp.accelerators.catalogue.rows import Line
from epp.framework.accelerators.tag import AcceleratorKind

_GPU = Line(vendor="nvidia", kind=AcceleratorKind.GPU)
_MIG = Line(vendor="nvidia", kind=AcceleratorKind.GPU, features="nvlink mig")

_P100 = "NVIDIA Tesla P100 GPU Accelerator Datasheet"
_V100 = "NVIDIA V100 Tensor Core GPU Datasheet"
_TURING = "NVIDIA Turing GPU Architecture Whitepaper"
_A100 = "NVIDIA A100 Tensor Core GPU Datasheet"
_A2000 = "NVIDIA RTX A2000 Datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture Whitepaper"
_H100 = "NVIDIA H100 Tensor Core GPU Datasheet"
_H200 = "NVIDIA H200 Tensor Core GPU Datasheet"
_H20 = "NVIDIA H20 GPU Product Brief"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip Datasheet"
_HGX = "NVIDIA HGX Platform Specifications"
_RTX_PRO = "NVIDIA RTX Blackwell PRO GPU Architecture Whitepaper"
_RTX_5000 = "NVIDIA RTX PRO 5000 Blackwell Datasheet"
_RTX_SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition Datasheet"

PRODUCTS: tuple[Product, ...] = (
    *of_generation(
        (6, 0),
        _GPU("p100-sxm-16gb", "p100", 16, 732, 10.6, 21.2, model="p100", variant="sxm", source=_P100),
        _GPU("p100-pcie-16gb", "p100", 16, 732, 9.3, 18.7, model="p100", variant="pcie", source=_P100),
        _GPU("p100-pcie-12gb", "p100", 12, 549, 9.3, 18.7, model="p100", variant="pcie", source=_P100),
    ),
    *of_generation(
        (6, 1),
        _GPU("p40", "p40", 24, 346, 12, None, None, 47, source="NVIDIA Tesla P40 Datasheet"),
        _GPU("p4", "p4", 8, 192, 5.5, None, None, 22, source="NVIDIA Tesla P4 Datasheet"),
    ),
    *of_generation(
        (7, 0),
        _GPU("v100-sxm-16gb", "v100", 16, 900, 15.7, 125, model="v100", variant="sxm", features="nvlink", source=_V100),
        _GPU("v100-sxm-32gb", "v100", 32, 900, 15.7, 125, model="v100", variant="sxm", features="nvlink", source=_V100),
        _GPU("v100-pcie-16gb", "v100", 16, 900, 14, 112, model="v100", variant="pcie", source=_V100),
        _GPU("v100-pcie-32gb", "v100", 32, 900, 14, 112, model="v100", variant="pcie", source=_V100),
        _GPU("v100s", "v100s", 32, 1134, 16.4, 130, source=_V100),
    ),
    *of_generation(
        (7, 5),
        _GPU("t4", "t4g?", 16, 320, 8.1, 65, None, 130, 260, source="NVIDIA T4 Tensor Core GPU Datasheet"),
        _GPU("quadro-rtx-8000", "rtx-?8000", 48, 672, 16.3, 130.5, None, 261, 522, source=_TURING),
        _GPU("quadro-rtx-6000", "quadro-rtx-?6000", 24, 672, 16.3, 130.5, None, 261, 522, source=_TURING),
        _GPU("quadro-rtx-5000", "quadro-rtx-?5000", 16, 448, 11.2, 89.2, source="NVIDIA Quadro RTX 5000 Datasheet"),
        _GPU("quadro-rtx-4000", "quadro-rtx-?4000", 8, 416, 7.1, 57, source="NVIDIA Quadro RTX 4000 Datasheet"),
    ),
    *of_generation(
        (8, 0),
        _MIG(
            "a100-sxm-40gb", "a100", 40, 1555, 19.5, 312, None, 624, 1248,
            model="a100", variant="sxm", compute_units=108, source=_A100,
        ),
        _MIG(
            "a100-sxm-80gb", "a100", 80, 2039, 19.5, 312, None, 624, 1248,
            model="a100", variant="sxm", compute_units=108, source=_A100,
        ),
        _MIG(
            "a100-pcie-40gb", "a100", 40, 1555, 19.5, 312, None, 624, 1248,
            model="a100", variant="pcie", compute_units=108, source=_A100,
        ),
        _MIG(
            "a100-pcie-80gb", "a100", 80, 1935, 19.5, 312, None, 624, 1248,
            model="a100", variant="pcie", compute_units=108, source=_A100,
        ),
        # an A100 with slower links
        _MIG(
            "a800-sxm-80gb", "a800", 80, 2039, 19.5, 312, None, 624, 1248,
            model="a800", variant="sxm", compute_units=108, source="NVIDIA A800 Tensor Core GPU Product Brief",
        ),
        _MIG(
            "a800-pcie-80gb", "a800", 80, 1935, 19.5, 312, None, 624, 1248,
            model="a800", variant="pcie", compute_units=108, source="NVIDIA A800 Tensor Core GPU Product Brief",
        ),
        _MIG(
            "a800-40gb", "a800", 40, 1555, 19.5, 312, None, 624, 1248,
            model="a800", variant="active", compute_units=108, source="NVIDIA A800 40GB Active Datasheet",
        ),
        _MIG("a30", "a30", 24, 933, 10.3, 165, None, 330, 661, compute_units=56, source="NVIDIA A30 Datasheet"),
    ),
    *of_generation(
        (8, 6),
        _GPU("a10", "a10", 24, 600, 31.2, 125, None, 250, 500, source="NVIDIA A10 Tensor Core GPU Datasheet"),
        _GPU("a10g", "a10g", 24, 600, 35, 70, None, 140, 280, source="NVIDIA A10G Datasheet (AWS)"),
        # figures of one of the four GPUs of the card
        _GPU("a16", "a16", 16, 200, 4.5, 17.9, None, 35.9, source="NVIDIA A16 Datasheet"),
        _GPU("a2", "a2", 16, 200, 4.5, 18, None, 36, 72, source="NVIDIA A2 Tensor Core GPU Datasheet"),
        _GPU("a40", "a40", 48, 696, 37.4, 149.7, None, 299.3, 598.7, features="nvlink", source="NVIDIA A40 Datasheet"),
        _GPU(
            "rtx-a6000", "(rtx-?)?a6000", 48, 768, 38.7, 154.8, None, 309.7, 619.3, features="nvlink", source=_GA102
        ),
        _GPU("rtx-a5500", "(rtx-?)?a5500", 24, 768, 34.1, 136.4, source="NVIDIA RTX A5500 Datasheet"),
        _GPU("rtx-a5000", "(rtx-?)?a5000", 24, 768, 27.8, 111.1, source="NVIDIA RTX A5000 Datasheet"),
        _GPU("rtx-a4500", "(rtx-?)?a4500", 20, 640, 23.7, 94.6, source="NVIDIA RTX A4500 Datasheet"),
        _GPU("rtx-a4000", "(rtx-?)?a4000", 16, 448, 19.2, 76.7, source="NVIDIA RTX A4000 Datasheet"),
        _GPU("rtx-a2000-12gb", "(rtx-?)?a2000", 12, 288, 8, 31.9, model="rtx-a2000", source=_A2000),
        _GPU("rtx-a2000-6gb", "(rtx-?)?a2000", 6, 288, 8, 31.9, model="rtx-a2000", source=_A2000),
    ),
    *of_generation(
        (8, 9),
        _GPU("l4", "l4", 24, 300, 30.3, 121, 242, 242, 485, source="NVIDIA L4 Tensor Core GPU Datasheet"),
        _GPU("l40", "l40", 48, 864, 90.5, 181, 362, 362, 724, source="NVIDIA L40 Datasheet"),
        _GPU("l40s", "l40s", 48, 864, 91.6, 362, 733, 733, 733, source="NVIDIA L40S Datasheet"),
        _GPU("l20", "l20", 48, 864, 59.8, 119.5, 239, 239, source="GPU Performance (Data Sheets) Quick Reference: L20"),
        _GPU(
            "rtx-6000-ada", "(rtx-?)?6000-?ada", 48, 960, 91.1, 364.2, 728.5, 728.5, 1457,
            source="NVIDIA RTX 6000 Ada Generation Datasheet",
        ),
        _GPU(
            "rtx-5880-ada", "(rtx-?)?5880(-?ada)?", 48, 960, 69.3, 277.1, 554.2,
            source="NVIDIA RTX 5880 Ada Generation Datasheet",
        ),
        _GPU(
            "rtx-5000-ada", "(rtx-?)?5000-?ada", 32, 576, 65.3, 261.1, 522.2,
            source="NVIDIA RTX 5000 Ada Generation Datasheet",
        ),
        _GPU(
            "rtx-4500-ada", "(rtx-?)?4500-?ada", 24, 432, 39.6, 158.5, 317,
            source="NVIDIA RTX 4500 Ada Generation Datasheet",
        ),
        _GPU(
            "rtx-4000-sff-ada", "(rtx-?)?4000-?sff-?ada", 20, 280, 19.2, 76.7, 153.4,
            source="NVIDIA RTX 4000 SFF Ada Generation Datasheet",
        ),
        # the tensor figure of its data sheet is not that of the cores and the clock
        _GPU("rtx-4000-ada", "(rtx-?)?4000-?ada", 20, 360, 26.7, source="NVIDIA RTX 4000 Ada Generation Datasheet"),
        _GPU(
            "rtx-2000-ada", "(rtx-?)?2000-?ada", 16, 224, 12, 48, 96, source="NVIDIA RTX 2000 Ada Generation Datasheet"
        ),
    ),
    *of_generation(
        (9, 0),
        # before h100, because of `H100-GH200-96GB`; the 480 GB of `GH200-480GB` are the memory of the CPU
        _MIG("gh200-96gb", "gh200", 96, 4000, 67, 989, 1979, 1979, model="gh200", compute_units=132, source=_GH200),
        _MIG("gh200-144gb", "gh200", 144, 4900, 67, 989, 1979, 1979, model="gh200", compute_units=132, source=_GH200),
        _MIG(
            "h100-sxm-80gb", "h100", 80, 3350, 67, 989, 1979, 1979,
            model="h100", variant="sxm|hbm3", compute_units=132, source=_H100,
        ),
        _MIG(
            "h100-sxm-96gb", "h100", 96, 3350, 67, 989, 1979, 1979,
            model="h100", variant="sxm", compute_units=132, source=f"{_H100}; memory: NVIDIA MIG User Guide",
        ),
        _MIG(
            "h100-pcie-80gb", "h100", 80, 2000, 51, 756, 1513, 1513,
            model="h100", variant="pcie", compute_units=114, source=_H100,
        ),
        _MIG(
            "h100-nvl-94gb", "h100", 94, 3900, 60, 835, 1671, 1671,
            model="h100", variant="nvl(?!ink)", compute_units=132, source=_H100,
        ),
        # an H100 with slower links
        _MIG(
            "h800-sxm-80gb", "h800", 80, 3350, 67, 989, 1979, 1979,
            model="h800", variant="sxm", compute_units=132, source="NVIDIA H800 GPU Product Guide (Lenovo)",
        ),
        _MIG(
            "h800-pcie-80gb", "h800", 80, 2000, 51, 756, 1513, 1513,
            model="h800", variant="pcie", compute_units=114, source="NVIDIA H800 GPU Product Guide (Lenovo)",
        ),
        _MIG(
            "h200-sxm-141gb", "h200", 141, 4800, 67, 989, 1979, 1979,
            model="h200", variant="sxm", compute_units=132, source=_H200,
        ),
        _MIG(
            "h200-nvl-141gb", "h200", 141, 4800, 60, 835, 1671, 1671,
            model="h200", variant="nvl(?!ink)", compute_units=132, source=_H200,
        ),
        _MIG("h20", "h20", 96, 4000, 44, 148, 296, 296, compute_units=78, source=_H20),
        _MIG(
            "h20-3e", "h20(-3e)?", 141, 4800, 44, 148, 296, 296,
            model="h20", variant="3e", compute_units=78, source=f"{_H20}; memory: LLM-Prof Hardware Specification",
        ),
    ),
    *of_generation(
        (10, 0),
        _MIG("b200", "b200", 180, 8000, 75, 2250, 4500, 4500, source=_HGX),
        _MIG("gb200", "gb200", 186, 8000, 80, 2500, 5000, 5000, source="NVIDIA GB200 NVL72 Specifications"),
    ),
    *of_generation(
        (10, 3),
        # int8 is a fraction of that of a B200, and not given for one GPU
        _MIG("gb300", "gb300", 278, 8000, 80, 2500, 5000, source="NVIDIA GB300 NVL72 Specifications"),
        _MIG("b300", "b300", 268, 8000, 75, 2250, 4500, source=f"{_HGX}; memory: Amazon EC2 P6 Instances"),
    ),
    *of_generation(
        (12, 0),
        # unlike GeForce, RTX PRO is as fast when it accumulates in fp32; where a data sheet has only fp4 with sparsity,
        # an eighth of that is fp16 and a quarter is fp8
        _GPU(
            # its data sheet rounds tensor figures to PFLOPS, with sparsity: these are twice and four times its TF32
            "rtx-pro-6000-server", "rtx-pro-6000", 96, 1597, 120, 468, 936, 936,
            model="rtx-pro-6000", variant="server|bse", features="mig", source=f"{_RTX_SERVER} (TF32); {_RTX_PRO}",
        ),
        _GPU(
            "rtx-pro-6000-max-q", "rtx-pro-6000", 96, 1792, 109.7, 438.9, 877.9, 877.9,
            model="rtx-pro-6000", variant="max-?q", features="mig", source=_RTX_PRO,
        ),
        _GPU(
            "rtx-pro-6000-workstation", "rtx-pro-6000", 96, 1792, 126, 503.8, 1007.6, 1007.6,
            model="rtx-pro-6000", variant="blackwell-workstation", features="mig", source=_RTX_PRO,
        ),
        _GPU("rtx-pro-5000", "rtx-pro-5000", 48, 1344, None, 258, 516, features="mig", source=_RTX_5000),
        _GPU(
            "rtx-pro-5000-72gb", "rtx-pro-5000", 72, 1344, None, 258, 516,
            model="rtx-pro-5000", features="mig", source=_RTX_5000,
        ),
        _GPU(
            "rtx-pro-4500", "rtx-pro-4500", 32, 896, None, 210.9, 421.8,
            features="mig", source="NVIDIA RTX PRO 4500 Blackwell Datasheet",
        ),
        _GPU(
            "rtx-pro-4500-server", "rtx-pro-4500", 32, 800,
            model="rtx-pro-4500", variant="server", features="mig",
            source="NVIDIA RTX PRO 4500 Blackwell Server Edition Datasheet",
        ),
        _GPU("rtx-pro-4000", "rtx-pro-4000", 24, 672, source="NVIDIA RTX PRO 4000 Blackwell Datasheet"),
    ),
)  # fmt: skip
"""In order of preference for an ambiguous name: the usual variant of a model first."""
