# SPDX-License-Identifier: Apache-2.0
"""TPUs of Google, and NPUs of AWS, Qualcomm and Huawei; `parts` are the cores that are allocated one by one."""

from epp.accelerators.catalogue.product import Product
from epp.accelerators.catalogue.rows import Line
from epp.framework.accelerators.tag import AcceleratorKind

_TPU = Line(vendor="google", kind=AcceleratorKind.TPU, features="xla bf16")
_NEURON = Line(vendor="aws", kind=AcceleratorKind.NPU, features="neuron bf16")
_QAIC = Line(vendor="qualcomm", family="cloud-ai-100", kind=AcceleratorKind.NPU)
_ASCEND = Line(vendor="huawei", family="ascend", kind=AcceleratorKind.NPU)
_NEURON_GUIDE = "AWS Neuron Documentation: {} Architecture"
_TPU_GUIDE = "Google Cloud TPU Documentation: {}"
_CLOUD_AI = "Qualcomm Cloud AI SDK User Guide: Architecture"
_CLOUDMATRIX = "Serving Large Language Models on Huawei CloudMatrix384 (one of the two dies)"

PRODUCTS: tuple[Product, ...] = (
    _TPU("v2", "tpu-?v2|^v2", 16, 700, None, 45, family="tpu-v2", source=_TPU_GUIDE.format("TPU v2")),
    _TPU("v3", "tpu-?v3|^v3", 32, 900, None, 123, family="tpu-v3", source=_TPU_GUIDE.format("TPU v3")),
    _TPU(
        "v4", "tpu-?v4|^v4", 32, 1228, None, 275, None, 275,
        family="tpu-v4", features="int8", source=_TPU_GUIDE.format("TPU v4"),
    ),
    _TPU(
        "v5e", "(tpu-?)?v5e|tpu-v5-lite|v5litepod", 16, 819, None, 197, None, 393,
        family="tpu-v5e", features="int8", source=_TPU_GUIDE.format("TPU v5e"),
    ),
    # v5p and v6e compute fp8 as bf16
    _TPU(
        "v5p", "(tpu-?)?v5p", 95, 2765, None, 459, 459, 918,
        family="tpu-v5p", features="int8", source=_TPU_GUIDE.format("TPU v5p, TPU7x"),
    ),
    _TPU(
        "v6e", "(tpu-?)?v6e", 32, 1638, None, 918, 918, 1836,
        family="tpu-v6e", features="int8", source=_TPU_GUIDE.format("TPU v6e, TPU7x"),
    ),
    _TPU(
        "v7x", "(tpu-?)?v7x?|tpu-?7x?", 192, 7380, None, 2307, 4614,
        family="tpu-v7x", features="int8 fp8", source=_TPU_GUIDE.format("TPU7x (Ironwood)"),
    ),
    _NEURON(
        "inferentia2", "inferentia-?2|inf2", 32, 820, 47.5, 190, 190, 380,
        family="neuron-v2", features="fp8", parts=2, source=_NEURON_GUIDE.format("Inferentia2"),
    ),
    _NEURON(
        "inferentia1", "inferentia-?1|inf1", 8, 50, None, 64, None, 128,
        family="neuron-v1", parts=4, source=_NEURON_GUIDE.format("Inferentia"),
    ),
    _NEURON(
        "trainium1", "trainium-?1|trn1n?", 32, 820, 47.5, 190, 190, 380,
        family="neuron-v2", features="fp8", parts=2, source=_NEURON_GUIDE.format("Trainium"),
    ),
    _NEURON(
        "trainium2", "trainium-?2|trn2u?", 96, 2900, 181, 667, 1299,
        family="neuron-v3", features="fp8", parts=8, source=_NEURON_GUIDE.format("Trainium2"),
    ),
    _NEURON(
        "trainium3", "trainium-?3|trn3[a-z0-9]*", 144, 4900, 183, 671, 2517,
        family="neuron-v4", features="fp8", parts=8, source=_NEURON_GUIDE.format("Trainium3"),
    ),
    _QAIC("cloud-ai-100-standard", "(cloud-)?ai-?100-standard", 16, 137, None, 110, None, 325, source=_CLOUD_AI),
    _QAIC("cloud-ai-100-pro", "(cloud-)?ai-?100-pro", 32, 137, None, 125, None, 375, source=_CLOUD_AI),
    # the device plugin counts each of the four SoCs of the card
    _QAIC("cloud-ai-100-ultra", "(cloud-)?ai-?100-ultra", 32, 137, None, 72.5, None, 217.5, source=_CLOUD_AI),
    # each of the two dies of a 910C is a device
    _ASCEND(
        "ascend-910c", "(ascend-?)?910-?c|(ascend-?)?910-93[0-9]*", 64, 1600, None, 376, None, 752,
        features="bf16", source=_CLOUDMATRIX,
    ),
    _ASCEND(
        "ascend-910b2", "(ascend-?)?910-?b2c?", 64, 1600, None, 376,
        features="bf16", parts=24, source="Atlas 800T A2 Technical Specifications",
    ),
    _ASCEND(
        "ascend-910b3", "(ascend-?)?910-?b3", 64, 1600, None, 313,
        features="bf16", parts=20, source="Atlas 800T A2 Technical Specifications",
    ),
    _ASCEND(
        "ascend-910b4-1", "(ascend-?)?910-?b4-1", 64, 1600, None, 280, None, 560,
        features="bf16", parts=20, source="Atlas 800I A2 Technical Specifications",
    ),
    _ASCEND(
        "ascend-910b4", "(ascend-?)?910-?b4(?!-1(-|$))", 32, 800, None, 280, None, 560,
        features="bf16", parts=20, source="Atlas 800I A2 Technical Specifications",
    ),
    _ASCEND("ascend-910b1", "(ascend-?)?910-?b1", 64, None, features="bf16", parts=25, source="Ascend Device Plugin"),
    _ASCEND(
        "ascend-910a", "(ascend-?)?910-?a", 32, 1200, None, 256, None, 512,
        parts=32, source="Ascend 910 Processor, Hot Chips 2019",
    ),
    # chips of Atlas 300I Pro and 300I Duo; those of a Duo of 96 GB have twice the memory
    _ASCEND(
        "ascend-310p", "(ascend-?)?310-?p[0-9]?", 24, 204.8, None, 70, None, 140,
        parts=8, source="Atlas 300I Pro Inference Card Technical White Paper",
    ),
    _ASCEND(
        "ascend-310", "(ascend-?)?310", 8, 51.2, None, None, None, 22,
        source="Atlas 300I Inference Card (Model 3010) Technical White Paper: a quarter of the card",
    ),
)  # fmt: skip
"""In order of preference for an ambiguous name."""
