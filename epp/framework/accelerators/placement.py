# SPDX-License-Identifier: Apache-2.0
"""Placement templates: how requests are spread over the GPUs of an endpoint's pool, and which of them they may use."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from epp.framework.snapshot import Attribute


class PlacementMode(StrEnum):
    """Order of GPUs."""

    COMPACT_FIRST = "CompactFirst"
    LOW_LOAD_FIRST = "LowLoadFirst"
    NODE_COMPACT = "NodeCompactGPULowLoad"


class PlacementTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A template that the cluster has."""

    name: str
    mode: PlacementMode = PlacementMode.NODE_COMPACT
    most_connections: int | None = None
    """Requests on one GPU at which it gets no more; None for no limit."""
    zone_label: str = ""
    """Label of nodes that all legs of a request must share; empty for none."""
    allow_local_gpu: bool = True
    """Whether endpoints may use the GPUs of the node that they run on."""


class EndpointPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Templates, as seen from an endpoint."""

    own: str = ""
    """Name of the template of its GPUPool; empty for none."""
    templates: Mapping[str, PlacementTemplate] = MappingProxyType({})
    """All templates by name."""
    is_local: bool = False
    """Whether it runs on the node of its GPUs."""

    def template(self, name: str) -> PlacementTemplate | None:
        """Return the template of that name, or the endpoint's own one for an empty name; None if there is none."""
        return self.templates.get(name or self.own)


NO_PLACEMENT = EndpointPlacement()
PLACEMENT: Attribute[EndpointPlacement] = Attribute("placement", NO_PLACEMENT, "accelerator-data-source")
"""Placement templates of the cluster, and the one of the endpoint."""
