# SPDX-License-Identifier: Apache-2.0
"""Profiles that are tried out beside those that decide."""

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
    """Which profiles, how often, and what they may take."""

    profiles: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=16)]
    """Names of profiles under `schedulingProfiles`; no profile handler sees them."""
    sample_rate: Share = 0.1
    """Share of the routed requests for which they run."""
    max_queue: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Requests that may wait for their shadows, each with the endpoints as they were; further ones have none."""
    timeout: str = "5ms"
    """How long a profile may compute for one request, at most `50ms`: one that takes longer is stopped, and disabled
    where that goes on."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a limit, and a profile that is named twice."""
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

    For a sample of the requests, once their answer has left, each of these profiles picks among the same endpoints with
    the same data. Metrics and decision records say how often it agrees, by how much its pick scores higher by its own
    scorers, and which accelerators and dollars an hour it would have taken. Nothing is reserved or remembered for it.
    One that fails, takes too long or takes memory has no effect on requests.
    """

    plugin_type = "shadow-profiles"

    @property
    def shadow_profiles(self) -> Sequence[str]:
        return self.parameters.profiles

    @property
    def limits(self) -> ShadowLimits:
        given = self.parameters
        return ShadowLimits(given.sample_rate, given.max_queue, parse_duration(given.timeout))
