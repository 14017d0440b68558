# SPDX-License-Identifier: Apache-2.0
import pytest

from epp.framework.accelerators.tag import AcceleratorKind
from epp.hardware.catalogue import CATALOGUE, PRODUCTS, Catalogue, Product, same_size
from epp.hardware.facts.merge import Rank
from epp.hardware.mig import mig_gpu, parse_mig_profile, partition_of
from tests.support.hardware_objects import GIB

SPELLINGS = {
    "h100-sxm-80gb": ["NVIDIA-H100-80GB-HBM3", "NVIDIA H100-SXM5-80GB", "H100-SXM5-80GB",
        "nvidia-h100-80gb", "nvidia-h100-mega-80gb", "h100"],
    "h100-pcie-80gb": ["NVIDIA-H100-PCIe"], "h100-nvl-94gb": ["NVIDIA-H100-NVL"],
    "gh200-96gb": ["NVIDIA H100-GH200-96GB", "NVIDIA-GH200-480GB"], "h200-sxm-141gb": ["NVIDIA-H200"],
    "b200": ["NVIDIA-B200"], "gb200": ["NVIDIA-GB200"], "t4": ["Tesla-T4", "Tesla-T4-SHARED", "nvidia-tesla-t4"],
    "v100-sxm-32gb": ["Tesla-V100-SXM2-32GB"],
    "a100-sxm-40gb": ["NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia-tesla-a100", "A100_SXM"],
    "a100-pcie-40gb": ["NVIDIA-A100-PCIE-40GB"], "a100-pcie-80gb": ["NVIDIA-A100-PCIE-80GB"],
    "a100-sxm-80gb": ["NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me-SHARED", "nvidia-a100-80gb", "A100_SXM_80G"],
    "a10": ["NVIDIA-A10"], "a10g": ["NVIDIA-A10G"], "l4": ["nvidia-l4"], "l40": ["NVIDIA-L40"],
    "l40s": ["NVIDIA-L40S"], "rtx-a6000": ["NVIDIA-RTX-A6000"], "rtx-6000-ada": ["NVIDIA-RTX-6000-Ada-Generation"],
    "rtx-4090": ["NVIDIA-GeForce-RTX-4090"],
    "mi300x": ["Instinct_MI300X", "AMD_Instinct_MI300X_OAM", "AMD-MI300X-192GB"],
    "mi250x-64gb": ["AMD Instinct MI250X"], "max-1550": ["Max_1550", "max-1550"],
    "max-1100": ["Intel Data Center GPU Max 1100"], "flex-170": ["Flex_170"],
    "gaudi2": ["HL-225", "Intel-Gaudi-2-96GB"], "gaudi3": ["Gaudi3", "HL-325L"], "v4": ["tpu-v4-podslice"],
    "v5e": ["tpu-v5-lite-podslice"], "v5p": ["tpu-v5p-slice"], "v6e": ["tpu-v6e-slice"], "v7x": ["tpu7x"],
    "rtx-pro-6000-server": ["NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "nvidia-rtx-pro-6000"],
    "rtx-pro-6000-workstation": ["NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition"],
    "rtx-pro-6000-max-q": ["NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition"],
    "rtx-a4000": ["NVIDIA-RTX-A4000"], "rtx-a5000": ["NVIDIA-RTX-A5000"],
    "rtx-4000-ada": ["NVIDIA-RTX-4000-Ada-Generation"], "rtx-4000-sff-ada": ["NVIDIA-RTX-4000-SFF-Ada-Generation"],
    "rtx-5000-ada": ["NVIDIA-RTX-5000-Ada-Generation"], "rtx-3090": ["NVIDIA-GeForce-RTX-3090"],
    "rtx-3090-ti": ["NVIDIA-GeForce-RTX-3090-Ti"], "rtx-5090": ["NVIDIA-GeForce-RTX-5090"],
    "quadro-rtx-6000": ["Quadro-RTX-6000"], "p40": ["Tesla-P40"], "p4": ["Tesla-P4"],
    "p100-pcie-16gb": ["Tesla-P100-PCIE-16GB"], "a16": ["NVIDIA-A16"], "a2": ["NVIDIA-A2"],
    "a800-sxm-80gb": ["NVIDIA-A800-SXM4-80GB"], "h800-sxm-80gb": ["NVIDIA-H800"], "h20": ["NVIDIA-H20"],
    "h20-3e": ["NVIDIA-H20-3e"], "l20": ["NVIDIA-L20"], "rtx-5070-ti": ["NVIDIA-GeForce-RTX-5070-Ti"],
    "rtx-pro-5000": ["NVIDIA-RTX-PRO-5000-Blackwell"], "rtx-pro-5000-72gb": ["NVIDIA-RTX-PRO-5000-72GB-Blackwell"],
    "rtx-pro-4500": ["NVIDIA-RTX-PRO-4500-Blackwell"],
    "rtx-pro-4500-server": ["NVIDIA-RTX-PRO-4500-Blackwell-Server-Edition"],
    "radeon-ai-pro-r9700": ["AMD_Radeon_AI_PRO_R9700"], "radeon-pro-v710": ["AMD Radeon Pro V710 MxGPU"],
    "arc-pro-b70": ["Intel(R) Arc(TM) Pro B70"], "b300": ["NVIDIA-B300-SXM6-AC"], "gb300": ["NVIDIA-GB300"],
    "mi300a": ["AMD_Instinct_MI300A"], "mi308x": ["AMD_Instinct_MI308X"], "mi350x": ["AMD_Instinct_MI350X"],
    "mi355x": ["AMD_Instinct_MI355X_OAM"], "gaudi1": ["gaudi-hl-205"], "flex-140": ["Flex_140"],
    "trainium2": ["trn2.48xlarge"], "inferentia2": ["inferentia2"], "ascend-910b3": ["910B3"],
    "ascend-910b4": ["Ascend910B4"], "ascend-910b4-1": ["Ascend910B4-1"], "ascend-910c": ["Ascend910_9392"],
    "ascend-310p": ["310P3"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "texts"), SPELLINGS.items())
def test_defect_27_products_are_found_in_every_spelling(name, texts):
    assert {text: CATALOGUE.find(text).name for text in texts} == dict.fromkeys(texts, name)


@pytest.mark.parametrize(
    "text",
    [
        *("", "m7i.4xlarge", "Matrox-G200", "A100X", "T400", "L400", "gaudi", "910", "Ascend910", "trainium"),
        *("RTX-4080-SUPER", "NVIDIA-GeForce-RTX-5070-Ti-Laptop-GPU"),
    ],
)
def test_what_is_no_known_product_is_not_taken_for_one(text):
    assert CATALOGUE.find(text) is None


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_every_product_is_found_by_its_own_name(product):
    assert CATALOGUE.find(product.name) is product


WITHOUT_FP16 = {
    # without tensor cores, or without a figure in a data sheet
    "p40", "p4", "rtx-4000-ada", "rtx-pro-4500-server", "rtx-pro-4000", "mi308x", "ascend-910b1",
    "ascend-310",
}  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_figures_of_a_product_are_plausible_and_have_a_source(product):
    assert product.source
    assert product.vendor
    assert product.family
    assert product.memory_bytes in {gigabytes * GIB for gigabytes in (6, 8, 10, 12, 20, 72, 95, 180, 186, 278)} | {
        gigabytes * GIB for gigabytes in (16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 192, 256, 268, 288)
    }
    assert (product.fp16 is None) == (product.name in WITHOUT_FP16)
    precisions = [figure for figure in (product.fp32, product.fp16, product.fp8) if figure is not None]
    assert precisions == sorted(precisions)
    assert all(
        figure <= (product.int8 or figure) <= (product.int4 or product.int8 or figure) for figure in precisions[:2]
    )
    # tensor cores at half the bits have at most about 4 times the figure
    assert product.fp8 is None or product.fp16 is None or product.fp8 <= 4 * product.fp16
    # all bytes of the memory can be read 3 to 80 times in a second
    assert product.bandwidth_gbps is None or 3 <= product.bandwidth_gbps * 10**9 / product.memory_bytes <= 80
    assert product.fp16 is None or 5 <= product.fp16 <= 2600
    assert product.parts is None or product.compute_units is None or product.compute_units % product.parts == 0
    # hardware without fp8 computes it with the units of 16 bits
    assert "fp8" in product.features or product.fp8 in {None, product.fp16}


@pytest.mark.parametrize(
    ("text", "mebibytes", "name"),
    [
        ("NVIDIA-A100", 40536, "a100-sxm-40gb"),
        ("NVIDIA-A100", 81251, "a100-sxm-80gb"),
        ("NVIDIA-H100", 81559, "h100-sxm-80gb"),
        ("NVIDIA-H100", 95830, "h100-nvl-94gb"),
        ("Tesla-V100-PCIE", 32510, "v100-pcie-32gb"),
        # the size in the text goes before the hint
        ("NVIDIA-A100-SXM4-40GB", 81251, "a100-sxm-40gb"),
        # a hint that fits nothing leaves the usual one
        ("NVIDIA-A100", 4864, "a100-sxm-40gb"),
        ("NVIDIA-H20", 143771, "h20-3e"),
        ("NVIDIA-RTX-PRO-5000-Blackwell", 73415, "rtx-pro-5000-72gb"),
        ("MI250X", 128 * 1024, "mi250x-128gb"),
    ],
)
def test_defect_10_a_memory_hint_tells_sizes_of_a_model_apart(text, mebibytes, name):
    assert CATALOGUE.find(text, mebibytes * 2**20).name == name


def test_defect_10_a_card_of_80_gb_that_reports_a_little_less_is_one_of_80_gb():
    assert same_size(80 * GIB, 81559 * 2**20)  # 79.6 GiB
    assert same_size(80 * GIB, int(77.7 * GIB))  # 3 % of 80 are 2.4
    assert same_size(80 * GIB, 80 * 10**9)
    assert not same_size(80 * GIB, 40 * GIB)


@pytest.mark.parametrize(("name", "tflops"), [("h100", 989), ("a100", 312), ("t4", 65), ("mi300x", 1307), ("v5e", 197)])
def test_defect_9_figures_are_dense_never_with_sparsity(name, tflops):
    assert CATALOGUE.find(name).fp16 == tflops


def test_defect_26_an_h200_has_141_gb():
    assert CATALOGUE.find("NVIDIA-H200").memory_bytes == 141 * GIB


@pytest.mark.parametrize(
    ("name", "family", "has", "has_not"),
    [
        ("v100", "volta", "cuda tensor-cores", "bf16 fp8"),
        ("t4", "turing", "cuda tensor-cores", "bf16 fp8 nvlink mig"),
        ("a100", "ampere", "cuda tensor-cores bf16 nvlink mig", "fp8"),
        ("l4", "ada-lovelace", "cuda tensor-cores bf16 fp8", "nvlink mig"),
        ("h100", "hopper", "cuda tensor-cores bf16 fp8 nvlink mig", "fp4"),
        ("b200", "blackwell", "cuda tensor-cores bf16 fp8 fp4 nvlink mig", "rocm"),
        ("mi300x", "cdna3", "rocm bf16 fp8", "cuda"),
        ("mi210", "cdna2", "rocm bf16", "fp8"),
        ("v5e", "tpu-v5e", "xla bf16 int8", "cuda"),
    ],
)
def test_features_and_family_follow_from_the_generation(name, family, has, has_not):
    product = CATALOGUE.find(name)
    assert product.family == family
    assert set(has.split()) <= product.features
    assert not set(has_not.split()) & product.features


def test_facts_of_a_product_are_those_of_a_whole_device():
    product = CATALOGUE.find("h100")
    facts = product.facts()
    assert (facts.source, facts.rank) == ("catalogue/h100-sxm-80gb", Rank.CATALOGUE)
    assert (facts.kind, facts.vendor, facts.model) == (AcceleratorKind.GPU, "nvidia", "h100")
    assert facts.memory_bytes == 80 * GIB
    assert facts.compute_capability == (9, 0)
    assert facts.count is None


def test_facts_of_a_slice_have_its_memory_and_the_whole_devices_performance():
    product, profile = CATALOGUE.find("a100-sxm-40gb"), parse_mig_profile("3g.20gb")
    assert profile is not None
    facts = product.facts(partition=partition_of(profile, mig_gpu(product.name)))
    assert facts.memory_bytes == 20 * GIB
    assert facts.fp16 == 312
    assert facts.partition is None
    assert not facts.features & {"nvlink", "mig"}


def test_text_of_any_length_is_looked_up_in_bounded_memory():
    assert CATALOGUE.find("NVIDIA-H100 " + "x" * 10_000) is None
    assert CATALOGUE.meant("") == ()


def test_products_added_replace_those_of_the_same_name_and_go_first():
    own = Product(name="t4", model="t4", vendor="nvidia", pattern="t4", fp16=60)
    new = Product(name="x1", model="x1", vendor="acme", pattern="x1")
    catalogue = CATALOGUE.extended([own, new])
    assert catalogue.find("Tesla-T4") is own
    assert catalogue.find("ACME X1") is new
    assert CATALOGUE.find("t4") is not own
    assert Catalogue([]).find("t4") is None
