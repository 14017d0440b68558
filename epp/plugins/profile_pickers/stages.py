"""The profiles that the legs of a disaggregated request run."""

from itertools import combinations

from epp.framework import Parameters


class StageProfiles(Parameters, frozen=True):
    """Names of the profiles, by stage."""

    decode: str = "decode"
    """The profile that chooses where the answer is generated; its targets are what the gateway gets."""
    prefill: str = "prefill"
    """The profile that chooses where the prompt is computed."""
    encode: str = "encode"
    """The profile that chooses where images, audio clips and videos are encoded."""

    def __post_init__(self) -> None:
        """Refuse names that do not tell the stages apart."""
        told_apart(decode=self.decode, prefill=self.prefill, encode=self.encode)


def told_apart(**profiles: str) -> None:
    """Raise ValueError where a stage has no profile, or two have the same."""
    for stage, profile in profiles.items():
        if not profile:
            raise ValueError(f"the {stage} stage has an empty profile name; name a profile or leave it out")
    for one, other in combinations(profiles, 2):
        if profiles[one] == profiles[other]:
            raise ValueError(f"the {one} and the {other} stage both run profile {profiles[one]!r}; give each its own")
