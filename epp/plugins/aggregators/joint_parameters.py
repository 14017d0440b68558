"""What counts in a joint choice, and how much."""

from typing import Annotated

from msgspec import Meta, field

from epp.framework import Parameters
from epp.framework.limits import NonNegative
from epp.plugins.aggregators.locality import LocalityBands
from epp.plugins.aggregators.pairing import Pairing
from epp.plugins.profile_pickers.stages import StageProfiles


class StageWeights(Parameters, frozen=True):
    """What each stage's score counts."""

    decode: NonNegative = 1.0
    """Weight of the decode leg's score, 0 or more."""
    prefill: NonNegative = 1.0
    """Weight of the prefill leg's score, 0 or more."""
    encode: NonNegative = 1.0
    """Weight of the encode leg's score, 0 or more."""


class JointParameters(Parameters, frozen=True):
    """What counts in a joint choice, and how much."""

    profiles: StageProfiles = field(default_factory=StageProfiles)
    """Names of the profiles, by stage; the same as the profile handler's."""
    weights: StageWeights = field(default_factory=StageWeights)
    """What each leg's score counts, by stage."""
    locality_weight: NonNegative = 1.0
    """What nearness of two legs counts; 0 for nothing."""
    locality: LocalityBands = field(default_factory=LocalityBands)
    """What nearness is worth, by the narrowest place shared."""
    pairing_weight: NonNegative = 1.0
    """What a good match of two legs' accelerators counts; 0 for nothing."""
    pairing: Pairing = field(default_factory=Pairing)
    """What pairs of accelerators are worth."""
    top_k: Annotated[int, Meta(ge=1, le=8)] = 4
    """Endpoints of each profile that are looked at, 1 to 8; 1 leaves every profile its own pick."""
