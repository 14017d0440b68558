# SPDX-License-Identifier: Apache-2.0
"""Names of the GPUs of a node, to tell which MIG profiles they can have."""

from collections.abc import Mapping

from epp.hardware.catalogue.instance_types import find_instance_type
from epp.hardware.labels.reading import INSTANCE_TYPE_LABELS
from epp.hardware.mig.vetting import NodeGpus

_PRODUCT, _MEMORY, _GKE = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "cloud.google.com/gke-accelerator"
_MIB = 2**20


def gpus_by_labels(labels: Mapping[str, str]) -> NodeGpus:
    """Return the GPU that the labels name: by its product, or by the machine type; none if they name none."""
    product = labels.get(_PRODUCT, "").strip()
    memory = labels.get(_MEMORY, "").strip()
    if product:
        of_slice = "-mig-" in product.lower()  # so is its memory
        known = not of_slice and memory.isascii() and memory.isdecimal() and len(memory) < len(str(2**63))
        return NodeGpus(((product, int(memory) * _MIB if known else None),))
    if named := labels.get(_GKE, "").strip():
        return NodeGpus(((named, None),))
    machine = find_instance_type(next((labels[key] for key in INSTANCE_TYPE_LABELS if labels.get(key)), ""))
    return NodeGpus() if machine is None else NodeGpus(((machine.product, None),))
