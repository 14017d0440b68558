"""How near two endpoints stand to each other."""

from epp.framework import Parameters, Topology


class LocalityBands(Parameters, frozen=True):
    """What nearness is worth, 0..1: the value of the narrowest place that both are known to share, else 0."""

    host: float = 1.0
    """On one host."""
    rack: float = 0.2
    """In one rack."""
    zone: float = 0.05
    """In one zone."""
    region: float = 0.02
    """In one region."""

    def __post_init__(self) -> None:
        """Refuse what would leave [0, 1]."""
        for name, value in (("host", self.host), ("rack", self.rack), ("zone", self.zone), ("region", self.region)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is {value}; it must be between 0 and 1")

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
