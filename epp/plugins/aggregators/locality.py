"""How near two endpoints stand to each other."""

from epp.framework import Parameters, Topology
from epp.framework.limits import Share


class LocalityBands(Parameters, frozen=True):
    """What nearness is worth, 0..1: the value of the narrowest place that both are known to share, else 0."""

    host: Share = 1.0
    """On one host."""
    rack: Share = 0.2
    """In one rack."""
    zone: Share = 0.05
    """In one zone."""
    region: Share = 0.02
    """In one region."""

    def between(self, one: Topology, other: Topology) -> float:
        """Return the value of the narrowest place shared; what is not known of either is not shared."""
        if one.host and one.host == other.host:
            return self.host
        if one.rack and one.rack == other.rack:
            return self.rack
        if one.zone and one.zone == other.zone:
            return self.zone
        if one.region and one.region == other.region:
            return self.region
        return 0.0
