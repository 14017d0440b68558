# SPDX-License-Identifier: Apache-2.0
"""Facts on an endpoint's hardware that no source has, and what to write to give them."""

from collections.abc import Iterator, Mapping

import msgspec

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag


class Missing(msgspec.Struct, frozen=True):
    """A fact that no source has."""

    fact: str
    """accelerator, model, count, memory, TFLOPS or price."""
    remedy: str


_DECLARE = "under accelerator in the endpoint list, or in an override"
_REMEDIES: Mapping[str, str] = {
    "accelerator": f"no known resource, label, claim or class: write an AcceleratorClass, or class {_DECLARE}",
    "model": f"no label, machine type or class names it: write an AcceleratorClass, or class {_DECLARE}",
    "count": f"the pod is not known, or others share its node: write count {_DECLARE}",
    "memory": f"no label, class or row of the catalogue: write memory {_DECLARE}, or capabilities.memoryGB in an "
    "AcceleratorClass",
    "TFLOPS": "no class and no row of the catalogue: write capabilities.performance in an AcceleratorClass, or "
    "fp16TFlops in the file of gpuCatalogue",
    "price": f"no class, variant, node or file of prices: give --prices FILE, or write cost.perHour in an "
    f"AcceleratorClass, or costPerHour {_DECLARE}",
}


def missing_of(tag: AcceleratorTag) -> tuple[Missing, ...]:
    """Return what is not known of the accelerators; nothing for an endpoint without any."""
    return tuple(Missing(fact, _REMEDIES[fact]) for fact in _facts(tag))


def _facts(tag: AcceleratorTag) -> Iterator[str]:
    if tag.kind is AcceleratorKind.CPU:
        return
    if tag.kind is AcceleratorKind.UNKNOWN:
        yield "accelerator"
    elif not tag.model and not tag.product:
        yield "model"
    if not tag.count:
        yield "count"
    if tag.memory_bytes is None:
        yield "memory"
    if not tag.tflops():
        yield "TFLOPS"
    if tag.cost_per_hour() is None:
        yield "price"
