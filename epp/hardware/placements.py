# SPDX-License-Identifier: Apache-2.0
"""Placement templates as each endpoint sees them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from epp.framework.accelerators.arrays import EndpointPlacement, PlacementTemplate
from epp.hardware.facts.surroundings import Surroundings
from epp.hardware.inventory import Inventory
from epp.hardware.placement_templates import read_template
from epp.kube.objects.tensor_fusion import Gpu


class Placements:
    """Templates of one inventory."""

    def __init__(self, inventory: Inventory, annotation_domain: str) -> None:
        self._pools = inventory.gpu_pools
        self._label = f"{annotation_domain}/gpupool"
        found = {each.name: read_template(each)[0] for each in inventory.scheduling_templates.values()}
        self._templates: Mapping[str, PlacementTemplate] = MappingProxyType(found)
        self._records: dict[tuple[str, bool], EndpointPlacement] = {}

    def of(self, around: Surroundings, gpus: Sequence[Gpu]) -> EndpointPlacement:
        """Return what the templates are for an endpoint with these GPUs; one record for all that are alike.

        Its pool is the one in the annotation of its pod, else that of its first GPU.
        """
        annotations = {} if around.pod is None else around.pod.metadata.annotations
        name = annotations.get(self._label) or (gpus[0].metadata.labels.get(self._label, "") if gpus else "")
        pool = self._pools.get(name)
        own = "" if pool is None else pool.spec.scheduling_config_template
        is_local = bool(gpus) and all(gpu.node == around.node_name for gpu in gpus)
        found = self._records.get((own, is_local))
        if found is None:
            found = EndpointPlacement(own=own, templates=self._templates, is_local=is_local)
            self._records[own, is_local] = found
        return found
