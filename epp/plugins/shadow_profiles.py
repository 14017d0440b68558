# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles: they run on live requests but decide nothing."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from epp.framework import Parameters
from epp.framework.limits import Name, Share
from epp.framework.quantities import parse_duration
from epp.framework.roles import Shadowing, ShadowLimits

_MOST_SECONDS = 0.05


class ShadowProfilesParameters(Parameters, frozen=True):
    """The shadow profiles, their sample rate and their limits."""

    profiles: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=16)]
    """Names of profiles under `schedulingProfiles`; no profile handler sees them."""
    sample_rate: Share = 0.1
    """Share of the routed requests for which they run, 0..1."""
    max_queue: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Most requests that wait for their shadow profiles; beyond it, shadow profiles are skipped."""
    timeout: str = "5ms"
    """Time limit of one run, at most `50ms`. A run over the limit is stopped; repeated excess disables the profile."""

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(self.profiles).items() if count > 1]
        if twice:
            raise ValueError(f"profiles names {twice[0]!r} twice: name it once")
        try:
            seconds = parse_duration(self.timeout)
        except ValueError as error:
            raise ValueError(f"timeout: {error}") from None
        if not 0 < seconds <= _MOST_SECONDS:
            raise ValueError(
                f"timeout is {self.timeout!r}: write a time above 0 and up to 50ms, as requests wait for it"
            )


class ShadowProfiles(Shadowing[ShadowProfilesParameters]):
    """Runs profiles that decide nothing, to compare their picks with the real ones.

    After the response to a sampled request, each of these profiles picks from the same endpoints with the same data.
    Metrics and decision records show how often it agrees, by how much its pick scores higher by its own scorers, and
    which accelerators and dollars an hour it would have used. Its picks reserve nothing and leave no trace in plugins.
    A shadow profile that fails or is slow does not affect requests.
    """

    plugin_type = "shadow-profiles"

    @property
    def shadow_profiles(self) -> Sequence[str]:
        return self.parameters.profiles

    @property
    def limits(self) -> ShadowLimits:
        given = self.parameters
        return ShadowLimits(given.sample_rate, given.max_queue, parse_duration(given.timeout))
