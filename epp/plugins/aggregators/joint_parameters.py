"""What counts in a joint choice, and how much."""

from math import isfinite

import msgspec

from epp.framework import Parameters
from epp.plugins.aggregators.locality import LocalityBands
from epp.plugins.aggregators.pairing import Pairing
from epp.plugins.profile_pickers.stages import StageProfiles

_MOST_OPTIONS = 8


class StageWeights(Parameters, frozen=True):
    """What each stage's score counts."""

    decode: float = 1.0
    """Weight of the decode leg's score, 0 or more."""
    prefill: float = 1.0
    """Weight of the prefill leg's score, 0 or more."""
    encode: float = 1.0
    """Weight of the encode leg's score, 0 or more."""

    def __post_init__(self) -> None:
        """Refuse weights that would turn a preference round, or poison the sum."""
        for name, value in (("decode", self.decode), ("prefill", self.prefill), ("encode", self.encode)):
            _checked(f"weight {name}", value)


class JointParameters(Parameters, frozen=True):
    """What counts in a joint choice, and how much."""

    profiles: StageProfiles = msgspec.field(default_factory=StageProfiles)
    """Names of the profiles, by stage; the same as the profile handler's."""
    weights: StageWeights = msgspec.field(default_factory=StageWeights)
    """What each leg's score counts, by stage."""
    locality_weight: float = 1.0
    """What nearness of two legs counts; 0 for nothing."""
    locality: LocalityBands = msgspec.field(default_factory=LocalityBands)
    """What nearness is worth, by the narrowest place shared."""
    pairing_weight: float = 1.0
    """What a good match of two legs' accelerators counts; 0 for nothing."""
    pairing: Pairing = msgspec.field(default_factory=Pairing)
    """What pairs of accelerators are worth."""
    top_k: int = 4
    """Endpoints of each profile that are looked at, 1 to 8; 1 leaves every profile its own pick."""

    def __post_init__(self) -> None:
        """Refuse weights below 0, and more combinations than a request has time for."""
        _checked("localityWeight", self.locality_weight)
        _checked("pairingWeight", self.pairing_weight)
        if not 1 <= self.top_k <= _MOST_OPTIONS:
            raise ValueError(f"topK is {self.top_k}; it must be between 1 and {_MOST_OPTIONS}")


def _checked(name: str, value: float) -> None:
    if not (isfinite(value) and value >= 0.0):
        raise ValueError(f"{name} is {value}; it must be 0 or more")
