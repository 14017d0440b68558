# SPDX-License-Identifier: Apache-2.0
"""Parts of devices that pods request by the name of a resource: NeuronCores, tiles, AI cores, AMD partitions."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from epp.framework.accelerators.tag import Partition, Sharing
from epp.hardware.catalogue import Product
from epp.hardware.catalogue.modes import partition_of_mode
from epp.hardware.resources import ResourceRequest
from epp.kube.objects.core import Node

_NEURON_CORE = "aws.amazon.com/neuroncore"
_NEURON_DEVICES = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice")
_TILES = "gpu.intel.com/tiles"
_AI_CORES = re.compile(r"huawei\.com/ascend[0-9a-z]+-(?P<cores>[1-9][0-9]?)c(\..*)?", re.IGNORECASE)
_SERVER_TYPE = re.compile(r"ascend[0-9a-z]+-(?P<cores>[1-9][0-9]?)", re.IGNORECASE)
_AMD = "amd.com/"


def requested_part(
    requested: Iterable[ResourceRequest],
    amounts: Mapping[str, int],
    product: Product | None,
    node: Node | None,
    devices: int | None = None,
) -> Partition | None:
    """Return the part of a device that each requested one is; None for whole devices and unknown parts.

    `amounts` are all extended resources that the pod requests; product and number of devices are those of the node.
    """
    parts = product.parts if product is not None else None
    for each in requested:
        if each.name == _NEURON_CORE:
            return _cores(1, _neuron_cores(node) or parts, "neuroncore")
        if (match := _AI_CORES.fullmatch(each.name)) is not None:
            return _cores(int(match["cores"]), _ai_cores(node) or parts, f"{match['cores']}c")
        mode = each.name.removeprefix(_AMD) if each.name.startswith(_AMD) else ""
        if (part := partition_of_mode(mode, product)) is not None:
            return part
        if each.vendor == "intel" and parts and (tiles := amounts.get(_TILES)) and tiles < each.count * parts:
            return _cores(tiles, each.count * parts, f"{tiles}t")
        if each.vendor == "intel" and (sharers := _sharers(each.name, node, devices)) > 1:
            share = 1 / sharers
            return Partition(kind=Sharing.TIME_SLICING, compute_fraction=share, memory_fraction=share, sharers=sharers)
    return None


def _sharers(resource: str, node: Node | None, devices: int | None) -> int:
    """Return how often the device plugin offers each device: no label of Intel's tells that devices are shared."""
    offered = 0 if node is None else int(node.status.allocatable.get(resource, 0))
    return offered // devices if devices and offered % devices == 0 else 1


def _cores(number: int, of: int | None, profile: str) -> Partition | None:
    """Return the share; None where the number of cores of a device is unknown."""
    if not of:
        return None
    share = min(number / of, 1.0)
    return Partition(kind=Sharing.CORES, profile=profile, compute_fraction=share, memory_fraction=share)


def _neuron_cores(node: Node | None) -> int | None:
    """Return the cores of a device, as the device plugin counts both: logical ones may join two of the hardware."""
    allocatable: Mapping[str, Fraction] = {} if node is None else node.status.allocatable
    devices = next((allocatable[name] for name in _NEURON_DEVICES if allocatable.get(name)), None)
    cores = allocatable.get(_NEURON_CORE)
    return int(cores / devices) or None if cores and devices else None


def _ai_cores(node: Node | None) -> int | None:
    """Return the AI cores of a device, from a label such as `servertype: Ascend910B-20`."""
    match = _SERVER_TYPE.fullmatch("" if node is None else node.metadata.labels.get("servertype", ""))
    return int(match["cores"]) if match else None
