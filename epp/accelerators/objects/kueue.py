"""ResourceFlavor of kueue.x-k8s.io."""

from collections.abc import Mapping

import msgspec

from epp.accelerators.objects.base import ClusterObject, Part


class FlavorSpec(Part, frozen=True, kw_only=True, rename="camel"):
    """Labels of the nodes of a flavor."""

    node_labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class ResourceFlavor(ClusterObject, frozen=True, kw_only=True, rename="camel"):
    """A flavor of nodes."""

    spec: FlavorSpec = FlavorSpec()
