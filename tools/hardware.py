# SPDX-License-Identifier: Apache-2.0
"""Writes docs/hardware.md: the products and machine types of the catalogue, with the documents of their figures."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from epp.hardware.catalogue import INSTANCE_TYPES, PRODUCTS, InstanceType, Product

_GIB = 2**30
_VENDORS = {
    "nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "google": "Google", "aws": "AWS", "qualcomm": "Qualcomm",
    "huawei": "Huawei",
}  # fmt: skip
_HEADS = (
    "product", "memory, GiB", "memory, GB/s", "host, GB/s", "fp32, TFLOPS", "fp16, TFLOPS", "fp8, TFLOPS", "int8, TOPS",
    "source",
)  # fmt: skip


def hardware_markdown() -> str:
    """Return the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# Hardware",
        "",
        "<!-- Written by `make docs` from the code. -->",
        "",
        "This page lists the products that `accelerator-data-source` knows. The picker uses these values if no claim,",
        "AcceleratorClass or node label gives them. The values are for one whole device, dense (without sparsity):",
        "compute in TFLOPS, or TOPS for int8; GB/s of its memory; and GB/s of the link to its host in one direction.",
        "If no vendor document gives a value, the cell is empty, and `epp accelerators` reports it as missing. A",
        "slice, partition or core gets a proportional part.",
        "",
        "To add a product, or to change a value, use an `AcceleratorClass` or a file of `gpuCatalogue`. To add a",
        "machine type, use `instanceTypes`.",
    )
    for vendor, products in groupby(PRODUCTS, key=lambda product: product.vendor):
        yield from ("", f"## {_VENDORS.get(vendor, vendor)}", "", *_table(_HEADS, map(_row, products)))
    yield from (
        "",
        "## Machine types",
        "",
        "If no label of a node names a product, its machine type gives the product and the number of devices.",
        "",
        *_table(("product", "devices", "network, Gbit/s", "machine types"), _machine_rows()),
    )


def _row(product: Product) -> tuple[str, ...]:
    figures = (product.bandwidth_gbps, product.host_gbps, product.fp32, product.fp16, product.fp8, product.int8)
    memory = product.memory_bytes // _GIB if product.memory_bytes else None
    return (f"`{product.name}`", *(_number(figure) for figure in (memory, *figures)), product.source)


def _machine_rows() -> Iterator[tuple[str, str, str, str]]:
    names: dict[InstanceType, list[str]] = {}
    for name, machine in INSTANCE_TYPES.items():
        names.setdefault(machine, []).append(name)
    for machine, types in names.items():
        devices = str(machine.count) if machine.share == 1 else f"1/{round(1 / machine.share)}"
        network = _number(machine.network or None)
        yield f"`{machine.product}`", devices, network, ", ".join(f"`{name}`" for name in types)


def _number(figure: float | None) -> str:
    return "" if figure is None else f"{figure:g}"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield "| " + " | ".join(row).replace("|  |", "| |").replace("|  |", "| |") + " |"
