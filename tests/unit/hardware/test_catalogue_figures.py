# SPDX-License-Identifier: Apache-2.0
"""Rules that hold for the figures of a generation, whatever the product; a figure with sparsity breaks them."""

import re
from itertools import groupby

import pytest

from epp.hardware.catalogue import PRODUCTS, Product

GEFORCE = [product for product in PRODUCTS if re.match(r"rtx-\d{4}(-ti)?$", product.name)]
NVIDIA = [product for product in PRODUCTS if product.vendor == "nvidia" and product not in GEFORCE]
BY_NAME = {product.name: product for product in PRODUCTS}

# fp16 of the tensor cores for one of fp32; None where that of a product was cut for export
_TO_FP32 = {
    (6, 0): 2, (7, 0): 8, (7, 5): 8, (8, 0): 16, (8, 6): 4, (8, 9): 4, (9, 0): 15, (10, 0): 30, (10, 3): 30, (12, 0): 4,
}  # fmt: skip
_HALF_RATE = {"a10g", "l40", "l20"}
"""Cards of data centres that halve the figure when they accumulate in fp32, as GeForce does."""
_CUT = {"h20", "h20-3e"}

# operations of fp16 of a compute unit in a clock
_PER_UNIT = {
    "ampere": 2048, "hopper": 4096,
    "cdna": 1024, "cdna2": 1024, "cdna3": 2048, "cdna4": 4096, "rdna": 256, "rdna3": 512, "rdna4": 1024,
}  # fmt: skip


def names(products):
    return [pytest.param(product, id=product.name) for product in products]


@pytest.mark.parametrize("product", names([one for one in NVIDIA if one.fp16 and one.fp32 and one.name not in _CUT]))
def test_fp16_of_tensor_cores_is_a_known_multiple_of_fp32(product: Product):
    assert product.fp32
    assert product.compute_capability is not None
    usual = _TO_FP32[product.compute_capability]
    expected = usual / 2 if product.name in _HALF_RATE else usual
    assert product.fp16 == pytest.approx(product.fp32 * expected, rel=0.08)


@pytest.mark.parametrize("product", names(GEFORCE))
def test_geforce_accumulates_in_fp32_at_half_the_rate_and_integers_at_the_full_one(product: Product):
    assert product.fp32
    assert product.fp16 == pytest.approx(2 * product.fp32, rel=0.01)
    assert product.fp8 is None or product.fp8 == pytest.approx(4 * product.fp32, rel=0.01)
    assert product.int8 == pytest.approx(8 * product.fp32, rel=0.01)
    assert product.int4 is None or product.int4 == pytest.approx(16 * product.fp32, rel=0.01)


@pytest.mark.parametrize("product", names([one for one in NVIDIA if one.compute_capability and one.fp16]))
def test_8_bits_are_twice_as_fast_as_16_on_tensor_cores(product: Product):
    for figure in (product.fp8, product.int8):
        assert figure is None or figure == pytest.approx(2 * (product.fp16 or 0), rel=0.015)
    # an L40S has int4 at the rate of int8
    assert product.int4 is None or product.int4 / (product.int8 or 1) == pytest.approx(
        1 if product.name == "l40s" else 2, rel=0.01
    )


@pytest.mark.parametrize("product", names([one for one in PRODUCTS if one.family in {"cdna3", "cdna4"} and one.fp16]))
def test_8_bits_are_twice_as_fast_as_16_on_matrix_cores_with_fp8(product: Product):
    assert product.fp8 == product.int8 == pytest.approx(2 * (product.fp16 or 0), rel=0.001)


@pytest.mark.parametrize("product", names([one for one in PRODUCTS if one.family in {"cdna", "cdna2", "rdna3"}]))
def test_8_bits_are_as_fast_as_16_on_older_matrix_cores(product: Product):
    assert (product.fp8, product.int8) == (None, product.fp16)


@pytest.mark.parametrize(
    "product", names([one for one in PRODUCTS if one.compute_units and one.fp16 and one.name not in _CUT])
)
def test_compute_units_reach_their_figure_at_a_clock_that_they_have(product: Product):
    assert product.fp16
    assert product.compute_units
    gigahertz = product.fp16 * 1000 / (product.compute_units * _PER_UNIT[product.family])
    # with sparsity it were 2.8 to 6
    assert 1.3 < gigahertz < (2.6 if product.family.startswith(("cdna", "rdna3")) else 3.0)


WITH_SPARSITY = {
    # as data sheets print them
    "a100-sxm-80gb": 624, "a30": 330, "a10": 250, "a10g": 140, "a40": 299.4, "rtx-a6000": 309.7,
    "l4": 242, "l40": 362.1, "l40s": 733,
    "h100-sxm-80gb": 1979, "h100-pcie-80gb": 1513, "h100-nvl-94gb": 1671,
    "h200-sxm-141gb": 1979, "h200-nvl-141gb": 1671,
    "b200": 36_000 / 8, "b300": 36_000 / 8, "gb200": 360_000 / 72, "gb300": 360_000 / 72,
    "mi300x": 2614.9, "mi355x": 5033.2,
    # of fp4, which is four times fp16
    "rtx-pro-6000-workstation": 4030 / 4, "rtx-pro-6000-max-q": 3511 / 4,
    "rtx-pro-5000": 2064 / 4, "rtx-pro-4500": 1687 / 4,
}  # fmt: skip


@pytest.mark.parametrize(("name", "with_sparsity"), WITH_SPARSITY.items())
def test_defect_9_fp16_is_half_of_the_figure_with_sparsity(name, with_sparsity):
    # 2 %: the 733 of an L40S are of fp8 at a higher clock than its 362
    assert BY_NAME[name].fp16 == pytest.approx(with_sparsity / 2, rel=0.02)


def test_sizes_of_a_model_compute_alike():
    def key(product):
        return (product.model, product.variant, product.compute_units)

    for _, group in groupby(sorted(PRODUCTS, key=lambda one: str(key(one))), key):
        figures = {(one.fp32, one.fp16, one.fp8, one.int8) for one in group}
        assert len(figures) == 1


def test_module_of_two_dies_has_twice_the_figures_of_a_die():
    for model in ("mi250", "mi250x"):
        die, module = BY_NAME[f"{model}-64gb"], BY_NAME[f"{model}-128gb"]
        for field in ("memory_bytes", "bandwidth_gbps", "fp32", "fp16", "int8", "compute_units"):
            assert getattr(module, field) == pytest.approx(2 * getattr(die, field), rel=0.01)


@pytest.mark.parametrize("product", names(PRODUCTS))
def test_source_is_a_title_and_no_address(product: Product):
    assert len(product.source.split()) >= 3
    assert "://" not in product.source
